"""A worker as the kernel sees it."""

import functools
import os
import re
import signal
import subprocess
import sys
import threading
import time

from able import LIMIT_S, probe
from able_shared import status_of, value_error


@probe
def libraries():
    import ctypes
    import ctypes.util

    libm = ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)
    libm.cos.restype = ctypes.c_double
    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))(
        lambda a, b: a[0] - b[0]
    )
    numbers = (ctypes.c_int * 3)(3, 1, 2)
    ctypes.CDLL(None).qsort(numbers, 3, 4, callback)
    return [
        libm.cos(ctypes.c_double(0)),
        list(numbers),
        ctypes.util.find_library("c"),
        repr(value_error(lambda: ctypes.CDLL("libno.so"))),
        ctypes.get_errno(),
    ]


@probe
def library_with_thread_storage():
    """Which libraries with static thread-local storage, like jemalloc's, can be loaded; the test has compiled them."""
    import ctypes

    found = []
    for size in sorted(int(name[3:-3]) for name in os.listdir(os.environ["ABLE_LIBS"])):
        try:
            library = ctypes.CDLL(f"{os.environ['ABLE_LIBS']}/tls{size}.so")
            found.append([size, library.count(), library.count()])
        except OSError as error:
            found.append([size, re.sub("^.*: ", "", str(error))])
    return found


@probe
def limits():
    import resource

    found = {}
    for name, value in (
        ("NOFILE", 64),
        ("CORE", 0),
        ("STACK", 2**22),
        ("FSIZE", 100),
        ("NPROC", 10000),
        ("CPU", 1000),
        ("MEMLOCK", 2**16),
    ):
        kind = getattr(resource, f"RLIMIT_{name}")
        before = resource.getrlimit(kind)
        resource.setrlimit(kind, (value, before[1]))
        found[name] = [
            before,
            resource.getrlimit(kind)[0],
            subprocess.run(["cat", "/proc/self/limits"], capture_output=True, text=True, check=False).stdout.count(
                "\n"
            ),
        ]
        if name == "NOFILE":
            fds = []
            try:
                while len(fds) < 100:
                    fds.append(os.dup(0))
            except OSError as error:
                found["files"] = [str(error), len(fds), fds[0]]
            for fd in fds:
                os.close(fd)
        if name == "FSIZE":
            found["size"] = repr(
                value_error(lambda: open(os.environ["ABLE_OUT"] + "/sized", "wb", buffering=0).write(b"x" * 200))
            )
        resource.setrlimit(kind, before)
    thread = threading.Thread(target=lambda: None)
    thread.start()
    resource.setrlimit(resource.RLIMIT_AS, (2**36, -1))
    found["memory"] = repr(value_error(lambda: bytearray(2**37)))
    return found


@probe
def kernel():
    """What the kernel has recorded of this process."""
    import ctypes
    import resource

    libc = ctypes.CDLL(None, use_errno=True)
    found = {}
    for name, number in (("pdeathsig", 2), ("subreaper", 37)):
        value = ctypes.c_int()
        libc.prctl(number, ctypes.byref(value), 0, 0, 0)
        found[name] = value.value
    for name, number in (
        ("dumpable", 3),
        ("keepcaps", 7),
        ("seccomp", 21),
        ("slack", 30),
        ("no_new_privs", 39),
        ("thp", 42),
        ("timing", 13),
        ("mce", 34),
    ):
        found[name] = libc.prctl(number, 0, 0, 0, 0)
    libc.prctl(15, b"renamed", 0, 0, 0)
    for name in (
        "comm",
        "oom_score_adj",
        "loginuid",
        "coredump_filter",
        "timerslack_ns",
        "personality",
        "autogroup",
        "limits",
    ):
        try:
            with open(f"/proc/self/{name}") as file:
                found[name] = re.sub(r"autogroup-\d+", "autogroup-N", file.read())
        except OSError as error:
            found[name] = error.strerror
    found["namespaces"] = {name: os.readlink(f"/proc/self/ns/{name}") for name in sorted(os.listdir("/proc/self/ns"))}
    found["scheduler"] = [
        os.sched_getscheduler(0),
        os.sched_getparam(0).sched_priority,
        os.getpriority(os.PRIO_PROCESS, 0),
        sorted(os.sched_getaffinity(0)),
    ]
    found["ids"] = [os.getresuid(), os.getresgid(), os.getgroups(), os.getsid(os.getppid()) == os.getppid()]
    found["usage"] = [resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, time.process_time() < 30]
    found["exe"] = os.readlink("/proc/self/exe")
    found["status"] = status_of()
    found["ioprio"] = libc.syscall(252, 1, 0)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    found["pinned"] = [len(os.sched_getaffinity(0)), os.nice(3)]
    return found


@probe
def parent_process():
    """The worker itself, as its child sees it."""
    parent = os.getppid()
    return [status_of(parent), os.getsid(parent) == parent, os.getpgid(parent) == parent]


@probe
def signals():
    seen = []
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(["usr1", frame is not None]))
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
    alarms = []
    signal.signal(signal.SIGALRM, lambda *_: alarms.append("alarm"))
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)  # repeated, as the first one may come before the pause
    signal.pause()
    signal.setitimer(signal.ITIMER_REAL, 0)
    seen.append(alarms[0])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LIMIT_S)
    signal.signal(signal.SIGCHLD, lambda *_: seen.append("child"))
    subprocess.run(["true"], check=True)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    os.kill(os.getpid(), signal.SIGUSR2)
    seen.append([int(number) for number in signal.sigpending()])
    seen.append(int(signal.sigwait({signal.SIGUSR2})))
    seen.append(signal.set_wakeup_fd(-1))
    signal.signal(signal.SIGVTALRM, lambda *_: seen.append("virtual"))
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.005)
    while seen[-1] != "virtual":
        pass
    signal.signal(signal.SIGRTMAX, lambda *_: seen.append("rt max"))
    os.kill(os.getpid(), signal.SIGRTMAX)
    signal.signal(signal.SIGRTMAX - 1, lambda *_: seen.append("rt max - 1"))
    os.kill(os.getpid(), signal.SIGRTMAX - 1)
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    except KeyboardInterrupt as error:
        seen.append(repr(error))
    return seen


@probe
def streams():
    import fcntl
    import stat

    found = {}
    for fd in (0, 1, 2):
        info = os.fstat(fd)
        found[fd] = [
            stat.filemode(info.st_mode),
            fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_LARGEFILE,
            os.get_inheritable(fd),
            os.isatty(fd),
        ]
    found["repr"] = [
        re.sub("0x[0-9a-f]+", "ID", repr(each))
        for each in (sys.stdin, sys.stdout, sys.stderr, sys.stdout.buffer, getattr(sys.stdout.buffer, "raw", None))
    ]
    found["read"] = [sys.stdin.read(), sys.stdin.readline(), sys.stdin.closed, repr(value_error(input))]
    found["size"] = [repr(value_error(functools.partial(os.get_terminal_size, fd))) for fd in (0, 1, 2)]
    found["tty"] = [
        repr(value_error(lambda: open("/dev/tty"))),
        repr(value_error(lambda: os.tcgetpgrp(0))),
        os.ctermid(),
    ]
    found["reconfigured"] = [
        sys.stdout.reconfigure(line_buffering=False),
        sys.stdout.line_buffering,
        sys.stdout.write_through,
    ]
    r, w = os.pipe()
    saved = os.dup(1)
    os.dup2(w, 1)
    sys.stdout.write("no newline")
    found["unbuffered"] = os.read(r, 99).decode()
    os.dup2(saved, 1)
    return found


@probe
def users():
    import getpass
    import platform
    import shutil
    import socket
    import tempfile

    return [
        getpass.getuser(),
        repr(value_error(os.getlogin)),
        os.path.expanduser("~"),
        platform.node() == socket.gethostname(),
        tempfile.gettempdir(),
        shutil.which("sh"),
        str(shutil.get_terminal_size()),
        os.cpu_count(),
        os.umask(0o22),
        repr(value_error(lambda: os.ttyname(0))),
    ]


@probe
def temporary_files_where_the_script_says():
    import tempfile

    os.environ["TMPDIR"] = os.environ["ABLE_OUT"]
    os.environ["TZ"] = "Pacific/Auckland"
    local = time.localtime(0).tm_hour
    time.tzset()
    return [
        tempfile.gettempdir() == os.environ["ABLE_OUT"],
        local,
        time.localtime(0).tm_hour,
        os.path.expandvars("$TZ"),
    ]
