"""What a child of tests/forked_server.py does: it becomes the requested process, from its first line to its end.

It ends as an interpreter does: threads are joined, exit hooks run, streams are flushed, the script's objects are
destroyed. Only the libraries that it inherited from the server are not torn down, which would cost more than all the
rest.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import os
import runpy
import signal
import sys
import threading
import time
import types
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_PR_SET_PDEATHSIG = 1

_OPENBLAS_SETTERS = ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads", "openblas_set_num_threads")


def become(request: dict[str, Any], dispositions: Mapping[int, Any], base_path: list[str]) -> None:
    """Be the requested process, from its first line to its end."""
    for number, handler in dispositions.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    if request["session"]:
        os.setsid()
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    set_environment(request["env"])
    time.tzset()
    open_streams()
    draw_seeds()
    set_threads(request["env"])
    argv: list[str] = request["argv"]
    set_title(argv)
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = argv
    more = [os.path.abspath(entry) for entry in request["env"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [request["first_path"], *dict.fromkeys([*more, *base_path])]
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
    inherited = frozenset(sys.modules)
    end(run(argv), inherited)


def run(argv: list[str]) -> int:
    """Run `[python, SCRIPT, ...]`, `[python, -m, MODULE, ...]` or `[MODULE:FUNCTION, ...]`; the exit code."""
    module = types.ModuleType("__main__")
    names: dict[str, Any] = {} if sys.version_info >= (3, 14) else {"__annotations__": {}}
    module.__dict__.update(__builtins__=sys.modules["builtins"], __spec__=None, **names)
    sys.modules["__main__"] = module
    if "multiprocessing" in sys.modules:
        sys.modules["__mp_main__"] = module
    try:
        if ":" in argv[0]:
            sys.argv[:] = argv
            name, _, function = argv[0].partition(":")
            sys.exit(getattr(importlib.import_module(name), function)())
        elif argv[1] == "-m":
            sys.argv[:] = ["-m", *argv[3:]]
            runpy._run_module_as_main(argv[2])  # type: ignore[attr-defined]  # what `python -m` itself calls
        else:
            sys.argv[:] = argv[1:]
            path = os.path.join(os.getcwd(), argv[1])
            module.__dict__.update(__file__=path, __loader__=SourceFileLoader("__main__", path), __cached__=None)
            with open(path, "rb") as file:
                code = compile(file.read(), path, "exec", dont_inherit=True)
            exec(code, module.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001 - as the interpreter's own last line of defense
        return died_of(error)
    return 0


def died_of(error: BaseException) -> int:
    """Print the traceback without the server's frames; the exit code."""
    mine = {__file__, runpy.__file__, "<frozen runpy>"}
    shown = error.__traceback__
    while shown is not None and shown.tb_frame.f_code.co_filename in mine:
        shown = shown.tb_next
    error.__traceback__ = shown
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, shown
    sys.excepthook(type(error), error, shown)
    return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


def end(code: int, inherited: frozenset[str]) -> None:
    """End as Py_Finalize does, except for what was there before the script. A code below 0: by that signal."""
    threading._shutdown()  # type: ignore[attr-defined]  # as Py_Finalize calls it
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        gc.unfreeze()
        raise SystemExit(code) from None  # the interpreter reports itself a stream that cannot be written
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            setattr(sys, name, None)
    threading.excepthook = lambda _: None  # of daemon threads, which an interpreter stops while it finalizes
    libc = ctypes.CDLL(None)
    own = [module for name, module in [*sys.modules.items()] if name not in inherited]
    for module in [sys.modules["__main__"], *reversed(own)]:
        names = getattr(module, "__dict__", {})
        for name in reversed([name for name in names if not name.startswith("__")]):
            names[name] = None
    gc.collect()
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        sys.stderr.flush()
    libc.fflush(None)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def set_environment(env: Mapping[str, str]) -> None:
    """Make `os.environ`, and the C library's environment with it, exactly `env`."""
    for name in [name for name in os.environ if name not in env]:
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def open_streams() -> None:
    """`sys.stdin`, `sys.stdout` and `sys.stderr` as the interpreter makes them for what is on 0, 1 and 2."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        raw = io.FileIO(fd, "rb" if fd == 0 else "wb", closefd=False)
        raw.name = f"<{name}>"
        at_once = bool(fd and os.environ.get("PYTHONUNBUFFERED"))
        buffer: Any = raw if at_once else io.BufferedWriter(raw) if fd else io.BufferedReader(raw)
        lines = (fd == 2 or raw.isatty()) and not at_once
        text = io.TextIOWrapper(buffer, old.encoding, old.errors, "\n" if fd else None, lines, at_once)
        vars(text)["mode"] = "r" if fd == 0 else "w"
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def draw_seeds() -> None:
    """New seeds for what draws one when a process starts; `random` does so itself after a fork."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def set_threads(env: Mapping[str, str]) -> None:
    """As many threads for torch and numpy as their environment would have given them when they were imported."""
    wanted = env.get("OMP_NUM_THREADS", "")
    torch = sys.modules.get("torch")
    if torch is not None and wanted.isdigit():
        torch.set_num_threads(int(wanted))
    if "numpy" not in sys.modules:
        return
    blas = env.get("OPENBLAS_NUM_THREADS") or env.get("GOTO_NUM_THREADS") or wanted
    count = int(blas) if blas.isdigit() and int(blas) > 0 else len(os.sched_getaffinity(0))
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if "openblas" in line or "libgomp" in line}
    for path in sorted(paths):
        library = ctypes.CDLL(path)
        if "libgomp" in path and wanted.isdigit():
            library.omp_set_num_threads(int(wanted))
        for name in _OPENBLAS_SETTERS:
            if "openblas" in path and hasattr(library, name):
                getattr(library, name)(count)
                break


def set_title(argv: list[str]) -> None:
    """Show `argv` in /proc/self/cmdline, over the server's own arguments, which are long."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end of proc_pid_stat(5)
    title = b"\0".join(os.fsencode(arg) for arg in argv) + b"\0"
    if start and len(title) <= end - start:
        ctypes.memmove(start, title.ljust(end - start, b"\0"), end - start)


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when the server is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
