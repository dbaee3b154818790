"""Writes all that a script can see of its process to CENSUS_OUT.RANK, as JSON; for torchrun and for distlaunch."""

import gc
import json
import locale
import os
import random
import resource
import signal
import sys
import threading
import warnings

early_modules = sorted(sys.modules)
early_fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}"))

import multiprocessing  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402


def stream(name):
    file = getattr(sys, name)
    return {
        "fd": file.fileno(),
        "encoding": file.encoding,
        "errors": file.errors,
        "line_buffering": file.line_buffering,
        "write_through": file.write_through,
        "isatty": file.isatty(),
        "newlines": repr(file.newlines),
        "type": type(file).__name__,
        "buffer": type(file.buffer).__name__,
    }


def openblas_threads():
    import ctypes

    with open("/proc/self/maps") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if "openblas" in line and ".so" in line}
    found = {}
    for path in paths:
        library = ctypes.CDLL(path)
        for name in ("scipy_openblas_get_num_threads64_", "openblas_get_num_threads64_", "openblas_get_num_threads"):
            if hasattr(library, name):
                found[os.path.basename(path)] = getattr(library, name)()
                break
    return found


def terminal():
    """The properties of the terminal, at each descriptor of this process that is one."""
    import termios

    found = {}
    for fd in (0, 1, 2):
        if os.isatty(fd):
            *modes, characters = termios.tcgetattr(fd)
            found[fd] = [tuple(os.get_terminal_size(fd)), modes, [str(character) for character in characters]]
    return found


def main_module():
    main = sys.modules["__main__"]
    return {
        "names": sorted(name for name in vars(main) if name.startswith("__")),
        "file": getattr(main, "__file__", None),
        "spec": getattr(main.__spec__, "name", None),
        "package": main.__package__,
        "loader": type(main.__loader__).__name__,
        "loader_path": getattr(main.__loader__, "path", None),
        "cached": str(getattr(main, "__cached__", None)),
        "doc": (main.__doc__ or "")[:20],
        "builtins": type(main.__builtins__).__name__,
        "annotations": repr(getattr(main, "__annotations__", None)),
        "is_mp_main": sys.modules.get("__mp_main__") is main,
        "type": type(main).__name__,
    }


def pending(kind):
    with open("/proc/self/status") as status:
        return {
            line.split(":")[0]: line.split()[1]
            for line in status
            if line.startswith(kind) and not line.startswith("SigQ")
        }


census = {
    "env": dict(os.environ),
    "argv": sys.argv,
    "orig_argv": getattr(sys, "orig_argv", None),
    "cmdline": [part.decode() for part in open("/proc/self/cmdline", "rb").read().rstrip(b"\0").split(b"\0")],
    "comm": open("/proc/self/comm").read(),
    "path": sys.path,
    "flags": str(sys.flags),
    "warnoptions": sys.warnoptions,
    "xoptions": sys._xoptions,
    "executable": sys.executable,
    "prefix": sys.prefix,
    "cwd": os.getcwd(),
    "umask": os.umask(os.umask(0o22) or 0),
    "nice": os.nice(0),
    "main": main_module(),
    "fds": [fd for fd in early_fds if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}")],
    "stdin": os.path.realpath("/proc/self/fd/0"),
    "terminal": terminal(),
    "streams": {name: stream(name) for name in ("stdout", "stderr")},
    "handlers": {
        signal.Signals(number).name if number < 32 else number: str(signal.getsignal(number))
        for number in signal.valid_signals()
    },
    "mask": sorted(map(str, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
    "kernel_signals": pending("Sig"),
    "is_session_leader": os.getsid(0) == os.getpid(),
    "is_group_leader": os.getpgid(0) == os.getpid(),
    "limits": {
        name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")
    },
    "threads": len(os.listdir("/proc/self/task")) - sum(openblas_threads().values()) + len(openblas_threads()),
    "python_threads": [thread.name for thread in threading.enumerate()],
    "main_thread_is_current": threading.main_thread() is threading.current_thread(),
    "torch_threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
    "openblas_threads": openblas_threads(),
    "recursion_limit": sys.getrecursionlimit(),
    "gc": [gc.isenabled(), gc.get_threshold()],
    "locale": locale.setlocale(locale.LC_ALL),
    "fs_encoding": [sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()],
    "warnings": [str(item) for item in warnings.filters[:1]],
    "excepthook": str(sys.excepthook is sys.__excepthook__),
    "agent_modules": [name for name in early_modules if "distlaunch" in name or name.startswith("launcher")],
    "importer_cache": [path for path in sys.path_importer_cache if path.endswith(".pyz")],
    "daemon": multiprocessing.current_process().daemon,
    "process_name": multiprocessing.current_process().name,
    "parent_process": str(multiprocessing.parent_process()),
    "start_method": multiprocessing.get_start_method(allow_none=True),
    "default_dtype": str(torch.get_default_dtype()),
    "cuda_initialised": torch.cuda.is_initialized(),
    "deterministic": torch.are_deterministic_algorithms_enabled(),
    "seeds": [torch.initial_seed(), int(np.random.randint(2**31)), random.getrandbits(64), float(torch.rand(1))],
    "authkey": bytes(multiprocessing.current_process().authkey).hex(),
}
rank = os.environ["RANK"]
with open(f"{os.environ['CENSUS_OUT']}.{rank}", "w") as file:
    json.dump(census, file, default=str)
print("census", rank)
