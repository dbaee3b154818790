"""The exit of a forked worker: all that a script can notice of an interpreter's exit, without tearing down torch.

Py_Finalize visits every object of every module. In a forked worker, that unshares 80 MB of pages and costs more CPU
time than starting the worker. So, after the interpreter has joined the threads and run all other exit hooks, the last
hook releases only what is the script's own (its modules and what they hold: destructors run, files are flushed), and
exits.

It does not if other code may rely on Py_Finalize: if CUDA is initialised, or the script has loaded native code of its
own (mpi4py finalizes MPI there).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import sys
from _weakref import ref  # `weakref` takes 1 ms to import
from itertools import takewhile
from typing import Any, Mapping, Optional, Sequence, Set

from . import cpython

_exit_code: Optional[int] = None
_inherited: Set[str] = set()
_preloaded: Set[str] = set()
_last_seen = ""
"""The last module of `look`."""

_libraries: Sequence[Any] = ()
_may_skip = _collect = False
_STDLIB = os.path.dirname(os.__file__)
_SITE = ("site-packages", "dist-packages")
_NEVER_S = 1e6
_OPERATORS = "torch.library"


def install() -> None:
    """Register the last hook. Must be called before any other is registered: hooks run last in, first out."""
    atexit.register(_leave)


def look() -> None:
    """Note what is loaded. In the server, before it forks: in a worker, this would unshare the pages of all modules."""
    global _last_seen, _libraries
    for name in list(takewhile(lambda name: name != _last_seen, reversed(sys.modules))):
        if name not in ("__main__", "__mp_main__"):
            _preloaded.add(name)
        if _is_installed(sys.modules[name]):
            _inherited.add(name)
    if _last_seen != next(reversed(sys.modules)):
        _last_seen, _libraries = next(reversed(sys.modules)), cpython.finalizers_of(_OPERATORS)


def prepare(env: Mapping[str, str], *, collect: bool) -> None:
    """Prepare the child before the script: record what is loaded, and skip the destructors of the server's libraries.

    `collect`: more than torch was preloaded, which the interpreter must collect if it finalizes the worker: otherwise
    triton, for example, reports leaks.

    Exit handlers run last in, first out, so those of libraries that the script loads run before these. With LD_PRELOAD,
    nothing is skipped: a preloaded profiler reports at exit.
    """
    global _may_skip, _collect  # noqa: PLW0603 - one process exits once
    look()
    _collect = collect
    libc = ctypes.CDLL(None)
    # Only glibc has these functions.
    _may_skip = "LD_PRELOAD" not in env and all(hasattr(libc, name) for name in ("on_exit", "fcloseall", "_exit"))
    if _may_skip:
        libc.on_exit(libc._exit, None)  # called with the exit status as its first argument
        libc.on_exit(libc.fcloseall, None)  # flushes what C code has printed
        if _libraries:
            atexit.register(_leave_operators)


def expect(code: object) -> None:
    """Set the exit code from the argument of `SystemExit`, None for 0; without a call, the interpreter finalizes."""
    global _exit_code  # noqa: PLW0603 - as above
    known = 0 if code is None else code
    _exit_code = known & 0xFF if isinstance(known, int) else 1


def _leave_operators() -> None:
    """Before finalizers run: torch takes its registered operators out of its tables there, one by one."""
    if not _is_for_interpreter():
        for finalizer in _libraries:
            finalizer.atexit = False


def _is_for_interpreter() -> bool:
    return _exit_code is None or not _may_skip or _needs_interpreter()


def _leave() -> None:
    if _is_for_interpreter():
        if _collect:
            gc.unfreeze()
        return
    if not _flush():
        return  # Py_Finalize has a message and an exit code for that
    with contextlib.suppress(BaseException):
        _let_go()
    code = 0 if _flush() else 120  # like Py_Finalize's
    ctypes.PyDLL(None).exit(_exit_code or code)


def _is_installed(module: object) -> bool:
    """Whether a module is a library's; other preloaded modules are the user's own, and released like the script."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.startswith("/"):  # built in, or synthetic like torch.ops
        return True
    return file.startswith(_STDLIB) or any(part in file for part in _SITE) or ".pyz" in file


def _needs_interpreter() -> bool:
    torch = sys.modules.get("torch")
    if torch is None or torch.cuda.is_initialized():
        return True
    new = [name for name in sys.modules if name not in _inherited]
    known = {name.partition(".")[0] for name in _inherited} if new else set()
    for name in new:
        origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
        if name.partition(".")[0] in known or not isinstance(origin, str):
            continue
        if origin.endswith(".so") and not (origin.startswith(_STDLIB) and not any(part in origin for part in _SITE)):
            return True
    return False


def _flush() -> bool:
    fine = True
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                if not getattr(stream, "closed", False):
                    stream.flush()
            except BaseException:  # noqa: BLE001 - a full disk, or a stream that the script has made
                fine = stream is not sys.stdout and fine
    return fine


def _let_go() -> None:
    """Destroy what the script's modules hold, as much like the interpreter as possible.

    Existing garbage goes first, then whole modules, which their functions hold in cycles: finalizers find all names in
    place. Modules that are still held, for example by torch, lose their names, the latest first. The interpreter does
    not guarantee an order either. Daemon threads, which an interpreter would stop, run only while a destructor waits
    for something; their errors are not reported.
    """
    sys.setswitchinterval(_NEVER_S)
    if "threading" in sys.modules:
        vars(sys.modules["threading"])["excepthook"] = lambda _: None
    cpython.clear_exit_hooks()  # they have run, and still hold references
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            setattr(sys, name, None)
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    if any(name in _preloaded for name in sys.modules if name not in _inherited):
        gc.unfreeze()  # some of the user's own modules were loaded before the fork
    gc.enable()
    gc.collect()  # objects from before the fork are frozen, so this visits only the script's
    own = ["__main__", "__mp_main__", *reversed([name for name in sys.modules if name not in _inherited])]
    marks = [_Mark() for _ in own]
    left = [ref(mark) for mark in marks]
    while marks:
        getattr(sys.modules.pop(own.pop(), None), "__dict__", {})[_Mark.__name__] = marks.pop()
    gc.collect()
    for mark in filter(None, (each() for each in left)):
        for names in gc.get_referrers(mark):
            for name in reversed(list(names if isinstance(names, dict) and _Mark.__name__ in names else ())):
                if not name.startswith("__"):
                    names[name] = None
    gc.collect()


class _Mark:
    """Put among a module's names to find those that are still held: the module itself may have been destroyed."""
