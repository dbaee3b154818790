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


def report(queue):
    """What a child of multiprocessing is."""
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
    child = context.Process(target=report, args=(queue,))
    child.start()
    told = queue.get(timeout=60)
    child.join()
    told["point"] = told["point"].x
    return [told, child.exitcode]


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
    shell = "ls -l /proc/self/fd | wc -l; ulimit -a; umask; ps -o nice= -p $$; read x; echo read=$?; trap; set -o | grep monitor"
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
        "spawned": os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", "exit 4"], os.environ), 0)[1]),
        "forkpty": forkpty(),
    }


def forkpty():
    pid, leader = os.forkpty()
    if not pid:
        os.write(1, b"%d %d" % (os.isatty(0), os.getsid(0) == os.getpid()))
        os._exit(0)
    said = os.read(leader, 99).decode()
    os.waitpid(pid, 0)
    return said


CENSUS = (
    "import json, os, sys; told = [sys.argv, sys.orig_argv[1:], str(sys.flags), sys.path, sorted(os.environ), os.getcwd()]; "
    "print(json.dumps(told))"
)


@probe
def python_below():
    import json

    done = subprocess.run([sys.executable, "-c", CENSUS, "a b"], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    told[4] = [name for name in told[4] if not name.startswith(("DISTLAUNCH_", "ABLE_", "PYTEST_"))]
    return [told, done.stderr]


@probe
def itself_again():
    """What a script does that starts itself with other variables."""
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


@probe
def threads():
    from concurrent.futures import ThreadPoolExecutor

    seen = []
    threading.setprofile(None)
    thread = threading.Thread(
        target=lambda: seen.append(
            [threading.current_thread().name, threading.active_count(), len(os.listdir("/proc/self/task"))]
        )
    )
    thread.start()
    thread.join()
    with ThreadPoolExecutor(2) as pool:
        seen += list(pool.map(square, [1, 2]))
        seen.append(sorted(thread.name for thread in threading.enumerate())[:1])
    timer = threading.Timer(0.01, seen.append, ["timer"])
    timer.start()
    timer.join()
    return [
        seen,
        threading.get_native_id() == os.getpid(),
        threading.main_thread().name,
        threading.main_thread().native_id == os.getpid(),
        threading.stack_size(),
        threading.current_thread() is threading.main_thread(),
        threading.main_thread().ident == threading.get_ident(),
        threading.main_thread().daemon,
    ]


@probe
def asynchronous():
    import asyncio

    async def main():
        loop = asyncio.get_running_loop()
        heard = asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, heard.set)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(heard.wait(), 30)
        process = await asyncio.create_subprocess_exec("sh", "-c", "echo out; exit 3", stdout=-1)
        out, _ = await process.communicate()
        threaded = await asyncio.to_thread(square, 4)
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
        reader, _ = await asyncio.open_connection(*server.sockets[0].getsockname())
        return [out.decode(), process.returncode, threaded, (await reader.read()).decode(), type(loop).__name__]

    return asyncio.run(main())


@probe
def shared_memory():
    import mmap
    import multiprocessing
    from multiprocessing import resource_tracker, shared_memory

    block = shared_memory.SharedMemory(create=True, size=100)
    pid = os.fork()
    if not pid:
        other = shared_memory.SharedMemory(name=block.name)
        other.buf[0] = 42
        os._exit(0)
    os.waitpid(pid, 0)
    anonymous = mmap.mmap(-1, 100)
    pid = os.fork()
    if not pid:
        anonymous[0] = 43
        os._exit(0)
    os.waitpid(pid, 0)
    value = multiprocessing.Value("i", 1)
    with value.get_lock():
        value.value += 1
    with multiprocessing.Manager() as manager:
        shared = manager.dict(a=1)
        found = [block.buf[0], anonymous[0], value.value, dict(shared), resource_tracker._resource_tracker._pid is not None]
    block.close()
    block.unlink()
    semaphore = multiprocessing.BoundedSemaphore(2)
    return [*found, semaphore.acquire(), semaphore.get_value()]
