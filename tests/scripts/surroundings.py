"""Writes what its interpreter and its process have inherited to the file named by its last argument, as JSON."""

import asyncio
import faulthandler
import json
import locale
import os
import resource
import signal
import sys
import time
import tracemalloc
import warnings


def documented():
    """This is None if docstrings are dropped."""


def asserted():
    try:
        assert not sys.argv
    except AssertionError:
        return True
    return False


def status():
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return {
        name: fields[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt", "Umask", "Cpus_allowed_list", "Seccomp")
    }


def contents(name):
    with open(f"/proc/self/{name}", errors="backslashreplace") as file:
        return file.read()


async def loops_debug():
    return asyncio.get_running_loop().get_debug()


VARIABLES = ("PYTHON", "LC_", "LANG", "TZ", "ODD")
seen = {
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")),
    "flags": str(sys.flags),
    "warnoptions": sys.warnoptions,
    "xoptions": sys._xoptions,
    "argv": sys.argv[1:-1],
    "orig_argv": sys.orig_argv[:-1],
    "cmdline": contents("cmdline").rstrip("\0").split("\0")[:-1],
    "executable": sys.executable,
    "path": sys.path,
    "filters": [repr(each) for each in warnings.filters],
    "debug": [__debug__, asserted(), documented.__doc__],
    "dev mode of asyncio": asyncio.run(loops_debug()),
    "tracemalloc": [
        tracemalloc.is_tracing(),
        tracemalloc.get_traceback_limit(),
        tracemalloc.get_traced_memory()[0] > 0,
    ],
    "faulthandler": faulthandler.is_enabled(),
    "bytecode": [sys.dont_write_bytecode, sys.pycache_prefix],
    "digits": sys.get_int_max_str_digits(),
    "streams": {
        name: [stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.newlines]
        for name, stream in (("stdin", sys.stdin), ("stdout", sys.stdout), ("stderr", sys.stderr))
    },
    "encodings": [sys.getfilesystemencoding(), sys.getfilesystemencodeerrors(), locale.getpreferredencoding(False)],
    "locale": [locale.setlocale(locale.LC_ALL), locale.getlocale()],
    "time": [time.tzname, time.localtime(0).tm_hour],
    "status": status(),
    "nice": [os.nice(0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))],
    "limits": {
        name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")
    },
    "oom_score_adj": contents("oom_score_adj"),
    "coredump_filter": contents("coredump_filter"),
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "cwd": os.getcwd(),
    "handlers": {int(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
    "environment": {
        name: value for name, value in os.environ.items() if name.startswith(VARIABLES) and name != "PYTHON_EXEC"
    },
}
if "PYTHONHASHSEED" in os.environ:
    seen["hash"] = [hash("x"), list({"a", "b", "c", "d"})]
seen["hook"] = sys.breakpointhook is sys.__breakpointhook__
if "PYTHONBREAKPOINT" in os.environ:
    seen["called"] = breakpoint()  # noqa: T100 - calls what the variable names
os.environ["TZ"] = "Pacific/Auckland"
time.tzset()
seen["time of the script's own"] = [time.tzname, time.localtime(0).tm_hour]
with open(sys.argv[2], "w") as file:
    json.dump(seen, file, default=str)
