"""A Python function, called by every rank of a run, and what it returns."""

from __future__ import annotations

import inspect
import os
import pickle
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from distlaunch._messages import quiet
from distlaunch._plan import request, send
from launcher.errors import BackendUnavailableError, CommandError, LaunchError, SpecError
from launcher.service import launch
from launcher.system import install, storage, trust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from distlaunch._result import Result

_SCRIPT = "_call.py"
_RESULT_BYTES = 1 << 34


class WorkerError(LaunchError):
    """A function that `call` has sent raised an exception, which is its `__cause__` where it could travel; or its run failed."""

    code = "worker"
    exit_code = 1

    def __init__(self, message: str, result: Result, traceback: str = "") -> None:
        super().__init__(message, hint=f"distlaunch logs {result.run}")
        cause = result.cause
        self.result = result
        self.rank = cause.rank if cause else None
        """Of the worker that failed first."""

        self.host = cause.host if cause else None
        self.traceback = traceback or (cause.traceback if cause else None) or ""
        """As Python prints it, from that worker."""


def call(
    function: Callable[..., Any],
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    by: Literal["auto", "pickle", "source"] = "auto",
    backend: str | None = None,
    cluster: str | None = None,
    timeout: float | None = None,
    **options: Any,
) -> list[Any]:
    """Call a function on every rank of a run, wait, and return what each has returned, by rank.

    The function travels `by` cloudpickle, where that is installed here and on the nodes, or as its source: then it must be a
    function of its own, which imports what it needs. `options` are those of `submit`.

    Raises `WorkerError` for an exception of the function's, with rank and host. The run is cancelled after `timeout` seconds
    (`TimeoutError`), and at Ctrl-C: nobody could fetch its results.
    """
    packed = _packed(function, tuple(args), dict(kwargs or {}), by)
    name = str(getattr(function, "__name__", "call"))
    run = _start(packed, {"name": name, **options}, backend, cluster)
    try:
        result = run.wait(timeout)
    except BaseException:
        run.cancel(wait=False)
        raise
    directory = run.path / "call"
    if not result.ok:
        raise _error(result, directory)
    return _values(result, directory)


@quiet
def _start(packed: bytes, options: dict[str, Any], backend: str | None, cluster: str | None) -> Any:
    asked = request(install.data("train") / _SCRIPT, (), backend, cluster, options)
    if not asked.backend.shares_run_dir:
        raise BackendUnavailableError(
            f"{asked.backend_name}: its workers do not see the run's directory, so results of a call cannot come back",
            hint="call on this machine or on Slurm, or submit a script that writes its results where you can read them",
        )
    path = launch.new_path(asked)
    job = replace(asked.job, command=(*asked.job.command, str(path / "call")))
    planned = launch.planned(replace(asked, job=job), path)

    def fill(folder: Path) -> None:
        trust.make("call", folder / "call")
        storage.write_whole(folder / "call" / "request", packed, mode=0o600)

    return send(planned, fill)


def _packed(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], by: str) -> bytes:
    """The request, as `train/_call.py` reads it."""
    cloudpickle = _cloudpickle() if by in ("auto", "pickle") else None
    if by == "pickle" and cloudpickle is None:
        raise SpecError("by='pickle' needs cloudpickle", hint="pip install cloudpickle, or by='source'")
    if by not in ("auto", "pickle", "source"):
        raise SpecError(f"by {by!r} is not known", hint="known: auto, pickle, source")
    content: dict[str, Any] = {"python": tuple(sys.version_info[:2]), "path": _path(function)}
    dumps = cloudpickle.dumps if cloudpickle else pickle.dumps
    try:
        if cloudpickle:
            content |= {"how": "pickle", "function": dumps(function)}
        else:
            content |= {"how": "source", "function": _source(function), "name": function.__name__}
        content["args"] = dumps((args, kwargs))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise SpecError(f"{getattr(function, '__name__', function)!r} cannot be sent: {error}") from error
    return pickle.dumps(content)


def _source(function: Callable[..., Any]) -> str:
    """The source of a function that needs nothing around it."""
    if not inspect.isfunction(function) or function.__name__ == "<lambda>" or function.__closure__:
        hint = "pip install cloudpickle, or write a function that imports what it needs"
        raise SpecError(f"{function!r} cannot be sent as source: it is no function of its own", hint=hint)
    try:
        return textwrap.dedent(inspect.getsource(function))
    except OSError as error:
        raise SpecError(f"{function.__name__}: no source: {error}", hint="pip install cloudpickle") from error


def _path(function: Callable[..., Any]) -> list[str]:
    """Where modules of one's own are found here, for a function that is one's own module's."""
    file = getattr(sys.modules.get(getattr(function, "__module__", "")), "__file__", None)
    depth = str(getattr(function, "__module__", "")).count(".")
    root = [str(Path(file).resolve().parents[depth])] if file else []
    return [*root, os.getcwd()]


def _cloudpickle() -> Any:
    try:
        import cloudpickle
    except ImportError:
        return None
    return cloudpickle


def _values(result: Result, directory: Path) -> list[Any]:
    """What every rank has returned."""
    names = [path.name for path in directory.iterdir() if path.name.startswith("result-") and not path.name.endswith(".part")]
    ranks = sorted(int(name.partition("-")[2]) for name in names)
    if not ranks or ranks != list(range(len(ranks))):
        raise CommandError(f"{result.run} has left results of ranks {ranks} alone", hint=f"distlaunch logs {result.run}")
    return [_unpacked(_result(directory, rank)["value"], rank) for rank in ranks]


def _error(result: Result, directory: Path) -> WorkerError:
    """What the function raised on the rank that failed first, or why the run failed."""
    cause = result.cause
    message = cause.message if cause else result.state
    where = f"rank {cause.rank} on {cause.host}: " if cause and cause.rank is not None else ""
    if cause is None or cause.rank is None or not (directory / f"result-{cause.rank}").exists():
        return WorkerError(f"{where}{message}", result)
    content = _result(directory, cause.rank)
    error = WorkerError(f"{where}{message}", result, content["traceback"])
    if content["value"]:
        error.__cause__ = _unpacked(content["value"], cause.rank)
    return error


def _result(directory: Path, rank: int) -> dict[str, Any]:
    """What a rank has left, in a file of ours alone."""
    with storage.read_errors(directory):
        content = trust.read("result", directory / f"result-{rank}", limit_bytes=_RESULT_BYTES)
    return dict(pickle.loads(content))  # noqa: S301 - the file is ours


def _unpacked(packed: bytes, rank: int) -> Any:
    try:
        return pickle.loads(packed)  # noqa: S301
    except Exception as error:
        raise CommandError(f"what rank {rank} returned cannot be read here: {error!r}") from error
