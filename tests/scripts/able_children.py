"""Processes and threads that a worker starts."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

from able import probe
from able_shared import STATUS, Point, square, value_error


def send_report(queue):
    """Send what a child of multiprocessing sees of itself."""
    import multiprocessing

    main = sys.modules["__main__"]
    queue.put(
        {
            "argv": sys.argv[1:],
            "main": os.path.basename(getattr(main, "__file__", "")),
            "mp_main": sys.modules.get("__mp_main__") is main,
            "method": multiprocessing.get_start_method(allow_none=True),
            "path0": sys.path[0],
            "cwd": os.getcwd(),
            "flags": str(sys.flags),
            "daemon": multiprocessing.current_process().daemon,
            "name": multiprocessing.current_process().name,
            "stdin": os.path.realpath("/proc/self/fd/0"),
            "torch": "torch" in sys.modules,
            "rank": os.environ["RANK"],
            "orig_argv": [re.sub(r"=\d+", "=N", word) for word in sys.orig_argv],
            "point": Point(3),
        }
    )


def children(method):
    import multiprocessing

    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=send_report, args=(queue,))
    child.start()
    report = queue.get(timeout=60)
    child.join()
    report["point"] = report["point"].x
    return [report, child.exitcode]


OURS = ("DISTLAUNCH_", "WANDB_", "MLFLOW_", "ABLE_", "PYTEST_")


@probe
def children_by_fork():
    return children("fork")


@probe
def children_by_spawn():
    return children("spawn")


@probe
def children_by_forkserver():
    return children("forkserver")


@probe
def process_pool():
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    found = []
    for method in (None, "fork", "spawn", "forkserver"):
        context = method and multiprocessing.get_context(method)
        with ProcessPoolExecutor(1, mp_context=context, initializer=os.nice, initargs=(2,)) as pool:
            found.append([list(pool.map(square, [1, 2])), pool.submit(os.nice, 0).result()])
            found.append(repr(pool.submit(square, "x").exception(60)))
        with multiprocessing.get_context(method).Pool(1, os.umask, (0o37,), maxtasksperchild=2) as pool:
            found.append([pool.map(square, range(3)), pool.apply_async(os.umask, (0,)).get(60)])
    return found


@probe
def statuses():
    found = []
    for action in (
        lambda: os._exit(7),
        lambda: os.kill(os.getpid(), 9),
        lambda: os.kill(os.getpid(), 15),
        lambda: os.kill(os.getpid(), 1),
    ):
        pid = os.fork()
        if not pid:
            action()
            os._exit(99)
        found.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    try:
        os.wait()
    except ChildProcessError as error:
        found.append(str(error))
    return found


@probe
def programs():
    seen = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    fields = dict(line.split(":\t", 1) for line in seen.splitlines() if ":\t" in line)
    shell = "ls -l /proc/self/fd | wc -l; ulimit -a; umask; ps -o nice= -p $$; read x; echo read=$?; "
    shell += "trap; set -o | grep monitor"
    r, w = os.pipe()
    passed = subprocess.run(["sh", "-c", f"echo in >&{w}"], pass_fds=[w], check=False)
    return {
        "status": {name: fields.get(name) for name in STATUS},
        "shell": subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False).stdout,
        "passed": [passed.returncode, os.read(r, 9).decode()],
        "session": subprocess.run(
            [sys.executable, "-c", "import os; print(os.getsid(0) == os.getpid())"],
            start_new_session=True,
            capture_output=True,
            text=True,
            check=False,
        ).stdout,
        "preexec": subprocess.run(["true"], preexec_fn=lambda: os.nice(1), check=False).returncode,
        "missing": repr(value_error(lambda: subprocess.run(["/no/such"], check=False))),
        "timeout": type(value_error(lambda: subprocess.run(["sleep", "60"], timeout=0.01, check=False))).__name__,
        "system": os.system("exit 3"),
        "popen": os.popen("echo hi").read(),
        "spawned": os.waitstatus_to_exitcode(
            os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", "exit 4"], os.environ), 0)[1]
        ),
        "forkpty": forkpty(),
    }


def forkpty():
    pid, leader = os.forkpty()
    if not pid:
        os.write(1, b"%d %d" % (os.isatty(0), os.getsid(0) == os.getpid()))
        os._exit(0)
    output = os.read(leader, 99).decode()
    os.waitpid(pid, 0)
    return output


CENSUS = (
    "import json, os, sys; "
    "seen = [sys.argv, sys.orig_argv[1:], str(sys.flags), sys.path, sorted(os.environ), os.getcwd()]; "
    "print(json.dumps(seen))"
)


@probe
def python_below():
    import json

    done = subprocess.run([sys.executable, "-c", CENSUS, "a b"], capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    seen[4] = [name for name in seen[4] if not name.startswith(OURS)]
    return [seen, done.stderr]


@probe
def itself_again():
    """Do what a script does that starts itself again with other variables."""
    r, w = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(w, 1)
        os.environ["ABLE_ONLY"] = "start_state"
        os.environ["ABLE_OUT"] += "/again"
        os.makedirs(os.environ["ABLE_OUT"], exist_ok=True)
        os.environ["RANK"], os.environ["WORLD_SIZE"] = "0", "1"
        os.execv(
            sys.executable,
            [
                sys.executable,
                "-c",
                "import sys, json; print(json.dumps([sys.argv, sys.executable, sys.orig_argv[:1]]))",
                *sys.argv,
            ],
        )
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return [code, os.read(r, 9999).decode(), sys.orig_argv[1:], os.path.samefile("/proc/self/exe", sys.executable)]


@probe
def traced_child():
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    pid = os.fork()
    if not pid:
        libc.ptrace(0, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(5)
    stopped = os.waitpid(pid, os.WUNTRACED)[1]
    continued = libc.ptrace(7, pid, 0, 0)
    other = os.fork()
    if not other:
        time.sleep(60)
    attached = libc.ptrace(16, other, 0, 0)
    os.waitpid(other, 0)
    libc.ptrace(17, other, 0, 0)
    os.kill(other, 9)
    return [
        os.WIFSTOPPED(stopped),
        continued,
        os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]),
        attached,
        os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]),
    ]
