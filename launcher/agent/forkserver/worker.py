"""Turns the forked child into what `python -u script.py` would have become, so that no script notices the fork.

Everything here runs in the child, after the fork, while it has one thread. The child then leaves the fork server's
frames by returning to the interpreter's top level: the interpreter itself joins threads, runs exit hooks, flushes
streams and sets the exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import runpy
import signal
import sys
import time
import types
from importlib.machinery import SourceFileLoader
from types import TracebackType
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional

from . import cpython, ending, notes
from .program import Program

_OPENBLAS_SETTERS = (
    "scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads", "openblas_set_num_threads",
)  # fmt: skip

_MAX_HANDLED = 16

_forgotten: List[Any] = []
"""In a worker: what `forget` has removed."""


def set_environment(env: Mapping[str, str]) -> None:
    """Make `os.environ`, and the C library's environment with it, exactly `env`."""
    for name in [name for name in os.environ if name not in env]:
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def forget(archive: str) -> None:
    """Remove the agent's modules and archive from the import system: a script may have modules of the same names.

    In a pod, the archive has further parts with a number after its name. What is removed stays alive: to destroy it
    would write to the pages of all that it holds, which workers share.
    """
    package = __name__.rpartition(".forkserver.")[0]
    modules = [name for name in sys.modules if name == package or name.startswith(package + ".")]
    own = (archive + os.sep, archive + ".")
    places = [path for path in sys.path_importer_cache if (path + os.sep).startswith(own)]
    _forgotten.extend(map(sys.modules.pop, modules))
    _forgotten.extend(map(sys.path_importer_cache.pop, places))
    forget_lines()
    _forgotten.extend(cpython.forget_archive(archive))


def forget_lines() -> None:
    """Forget source lines that were read for tracebacks. In the server, before it forks: imports have read many."""
    getattr(sys.modules.get("linecache"), "cache", {}).clear()


def reseed() -> None:
    """Draw the seeds that a new process draws when it starts; `random` does so itself after a fork."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)


def set_blas_threads(env: Mapping[str, str]) -> None:
    """Give numpy's OpenBLAS the thread count that it would have read from `env`; the server imported it with one."""
    wanted = env.get("OPENBLAS_NUM_THREADS") or env.get("GOTO_NUM_THREADS") or env.get("OMP_NUM_THREADS") or ""
    count = int(wanted) if wanted.isdigit() and int(wanted) > 0 else len(os.sched_getaffinity(0))
    if count == 1:
        return
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if "openblas" in line}
    for path in paths:
        with contextlib.suppress(OSError):  # an upgrade has replaced its file: it keeps one thread
            library = ctypes.CDLL(path)
            for name in _OPENBLAS_SETTERS:
                if hasattr(library, name):
                    getattr(library, name)(count)
                    break


def renew(name: str) -> None:
    """Make the object that `python -u` would have made for this stdin, stdout or stderr: ours was for another file."""
    import io

    before = getattr(sys, name)
    mode = "r" if name == "stdin" else "w"
    raw: Any = io.FileIO(before.fileno(), mode, closefd=False)
    raw.name = f"<{name}>"
    new: Any = io.TextIOWrapper(
        io.BufferedReader(raw) if mode == "r" else raw,
        encoding=before.encoding,
        errors=before.errors,
        newline="\n",
        write_through=True,
    )
    new.mode = mode
    for each in (name, f"__{name}__"):
        setattr(sys, each, new)


def new_main(program: Program) -> types.ModuleType:
    """A fresh `__main__`, also known as `__mp_main__` as in any process that imported multiprocessing."""
    main = types.ModuleType("__main__")
    names: Dict[str, Any] = {"__builtins__": sys.modules["builtins"], "__spec__": None}
    if program.kind == "script":
        loader = SourceFileLoader("__main__", program.path)
        names.update(__file__=program.path, __loader__=loader, __cached__=None)
    if sys.version_info < (3, 14):
        names["__annotations__"] = {}
    main.__dict__.update(names)
    sys.modules["__main__"] = main
    if "multiprocessing" in sys.modules:
        sys.modules["__mp_main__"] = main
    return main


def run(
    program: Program, python: str, errors: str = "", debugger: Callable[[BaseException], None] = lambda _: None
) -> None:
    """Run the script or module as `__main__`; ends as the interpreter would, by `SystemExit` if the code is not 0.

    `errors`: where to record an uncaught exception; the script may name another file.
    `debugger` is called with it, after it was shown.
    """
    sys.argv[:] = ["-m" if program.kind == "module" else program.target, *program.args]
    original = getattr(sys, "orig_argv", None)  # from Python 3.10 on
    if original is not None:
        original[:] = program.argv(python)
    main, me = new_main(program), os.getpid()
    try:
        if program.code is not None:
            exec(program.code, main.__dict__)  # noqa: S102 - this is what the program is for
        else:
            run_module = cpython.run_module_as_main()
            run_module(program.target, alter_argv=True)
    except SystemExit as end:
        _abort_mpi(end)
        _leave_jax(end)
        ending.expect(end.code)
        if end.code and errors and os.getpid() == me:
            _note_exit(end, errors)
        raise  # the interpreter prints its message
    except BaseException as error:  # noqa: BLE001 - the last line of defence of a process
        _end_by(error, errors, debugger if os.getpid() == me else None)
    if os.getpid() == me:
        _check_world(errors)
    ending.expect(None)


def _note_exit(end: SystemExit, errors: str) -> None:
    """Tell when the script called exit, and from which exceptions or in whose handlers: one of them may be why."""
    with contextlib.suppress(Exception):  # whatever the script has made of `time`
        handled: List[BaseException] = []
        left = [end.__cause__, end.__context__]
        while left and len(handled) < _MAX_HANDLED:
            within = left.pop(0)
            if within is not None and all(within is not known for known in handled):
                handled.append(within)
                left += [within.__cause__, within.__context__]
        handles = [type(each).__qualname__ for each in handled]
        notes.leave(os.path.dirname(os.path.dirname(errors)), notes.EXIT, {"at": time.time(), "handles": handles})


def _end_by(error: BaseException, errors: str, debugger: Optional[Callable[[BaseException], None]]) -> NoReturn:
    """Do what the interpreter does with an uncaught exception, without the agent's frames in the traceback.

    `debugger`: None in a process that the script has forked, whose failure is not the worker's.
    """
    shown = _own_frames(error.__traceback__)
    _abort_mpi(error)
    _leave_jax(error)
    error.__traceback__ = shown
    if debugger:
        record_failure(os.environ.get("TORCHELASTIC_ERROR_FILE") or errors, error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, shown
    with contextlib.suppress(Exception):
        _show(error)
    if debugger:
        debugger(error)
    if isinstance(error, KeyboardInterrupt):
        # The interpreter ends itself by SIGINT after its exit hooks; the traceback has been printed.
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt
    ending.expect(1)
    raise SystemExit(1)


def _abort_mpi(error: BaseException) -> None:
    """Have mpi4py abort the world at exit, as `python -m mpi4py` does: MPI_Finalize would wait for the other ranks."""
    if "mpi4py.MPI" in sys.modules and "DISTLAUNCH_MPI" in os.environ:
        with contextlib.suppress(Exception):
            importlib.import_module("mpi4py.run").set_abort_status(error)


def _leave_jax(error: BaseException) -> None:
    """Keep JAX's exit hook from waiting for the other processes, for up to five minutes: one of them waits for us."""
    hook = getattr(sys.modules.get("jax._src.api"), "clean_up", None)
    failed = not isinstance(error, SystemExit) or error.code not in (None, 0)
    if hook is not None and failed and "JAX_COORDINATOR_ADDRESS" in os.environ:
        atexit.unregister(hook)


def _check_world(errors: str) -> None:
    """Fail if mpi4py's world is not the one that was started: then this process was alone in a world of its own."""
    mpi, wanted = sys.modules.get("mpi4py.MPI"), os.environ.get("WORLD_SIZE", "")
    if mpi is None or "DISTLAUNCH_MPI" not in os.environ or not mpi.Is_initialized() or mpi.Is_finalized():
        return
    size = mpi.COMM_WORLD.Get_size()
    if str(size) != wanted:
        text = f"MPI's world has {size} rank{'s' * (size > 1)} here, and {wanted} were started"
        why = f"mpi4py uses {mpi.Get_library_version().split(',')[0].strip()}, mpirun is {os.environ['DISTLAUNCH_MPI']}"
        _end_by(RuntimeError(f"{text}: {why}"), errors, lambda _: None)


def _show(error: BaseException) -> None:
    """Show it by the script's hook or, if that is missing or fails, do what the interpreter does then."""
    about: Any = (type(error), error, error.__traceback__)
    if not hasattr(sys, "excepthook"):
        print("sys.excepthook is missing", file=sys.stderr)
    hook = getattr(sys, "excepthook", sys.__excepthook__)
    try:
        hook(*about)
    except SystemExit:
        raise
    except BaseException as second:  # noqa: BLE001 - as above
        second.__traceback__ = second.__traceback__ and second.__traceback__.tb_next
        second.__context__ = None
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(second), second, second.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(*about)


def _own_frames(tb: Optional[TracebackType]) -> Optional[TracebackType]:
    """The traceback from the first frame that is neither the agent's nor runpy's."""
    # Not `__file__`: the bytecode may have another name for this file.
    mine = {_own_frames.__code__.co_filename, runpy.__file__, "<frozen runpy>"}
    first = tb
    while first is not None and first.tb_frame.f_code.co_filename in mine:
        first = first.tb_next
    return first


def record_failure(path: Optional[str], error: BaseException) -> None:
    """Write torchelastic's error file as @record would, with a time that is more precise than whole seconds.

    What the script has written there stays: if it is of another exception, this one is a consequence.
    """
    if not path:
        return
    import traceback  # torch has imported it

    now, said = time.time(), text_of(error)
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    about = {"message": {"message": said, "extraInfo": {"py_callstack": text, "timestamp": str(int(now))}}}
    with contextlib.suppress(Exception):
        if os.path.isfile(path) and os.path.getsize(path):
            with open(path, encoding="utf-8") as file:
                about = json.load(file)
            if about["message"]["message"] != said:
                return
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump({**about, "raised_at": now}, file)


def text_of(error: BaseException) -> str:
    """The type and text of an exception, as in a traceback."""
    said = "<exception str() failed>"  # as in the traceback
    with contextlib.suppress(Exception):
        said = str(error)
    return f"{type(error).__name__}: {said}"


def restore_signals(dispositions: Mapping[int, Any]) -> None:
    """Restore the handlers that the server's interpreter started with, except those that a preloaded module has set."""
    for number, handler in dispositions.items():
        signal.signal(number, handler)
    signal.set_wakeup_fd(-1)
