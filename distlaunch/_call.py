"""Call a Python function on every rank of a run, and return its results."""

from __future__ import annotations

import base64
import inspect
import os
import pickle
import sys
import textwrap
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from distlaunch._events import NodeEvent
from distlaunch._leaving import cancelled_if_left
from distlaunch._messages import quiet
from distlaunch._plan import request, send
from launcher.errors import CommandError, LaunchError, SpecError
from launcher.service import launch
from launcher.system import storage, trust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from distlaunch._result import Result
    from distlaunch._run import Run

_RESULT_BYTES = 1 << 34

_Packed: TypeAlias = "bytearray | str"
"""A result, or the path of a file with a large one."""


class WorkerError(LaunchError):
    """A function sent by `call` raised an exception, its `__cause__` if that could be sent, or its run failed."""

    code = "worker"
    exit_code = 1

    def __init__(self, message: str, result: Result, traceback: str = "") -> None:
        super().__init__(message, hint=f"distlaunch logs {result.run}")
        cause = result.cause
        self.result = result
        self.rank = cause.rank if cause else None
        """Rank of the worker that failed first."""

        self.host = cause.host if cause else None
        self.traceback = traceback or (cause.traceback if cause else None) or ""
        """Traceback of that worker, as Python prints it."""


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
    """Call a function on every rank of a run, wait for the run, and return the results in the order of ranks.

    `by`: "pickle" sends the function with cloudpickle, which has to be installed here and on the nodes. "source" sends
    its source code, so it must be self-contained and import what it needs. "auto" is "pickle" if cloudpickle is
    installed here. `options` are those of `submit`.

    Raises `WorkerError` if the function raises an exception, with rank and host, or if the run fails. The run is
    cancelled after `timeout` seconds (`TimeoutError`) and on Ctrl-C, as its results could no longer be fetched.
    """
    packed = _packed(function, tuple(args), dict(kwargs or {}), by)
    name = str(getattr(function, "__name__", "call"))
    run = _start(name, packed, options, backend, cluster)
    with cancelled_if_left(run):
        result = run.wait(timeout)
    if not result.ok:
        raise _error(run, result)
    return _values(run)


@quiet
def _start(name: str, packed: bytes, options: dict[str, Any], backend: str | None, cluster: str | None) -> Run:
    asked = request(name, (), backend, cluster, {**options, "no_python": True})
    job = replace(asked.job, kind="function", function=base64.b64encode(packed).decode("ascii"))
    return send(launch.planned(replace(asked, job=job, given={})))


def _packed(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], by: str) -> bytes:
    """The request, in the form that `launcher/agent/node/called.py` reads."""
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
    """The source of a self-contained function."""
    if not inspect.isfunction(function) or function.__name__ == "<lambda>" or function.__closure__:
        hint = "pip install cloudpickle, or write a function that imports what it needs"
        raise SpecError(f"{function!r} cannot be sent as source: it is not a self-contained function", hint=hint)
    try:
        return textwrap.dedent(inspect.getsource(function))
    except OSError as error:
        raise SpecError(f"{function.__name__}: no source: {error}", hint="pip install cloudpickle") from error


def _path(function: Callable[..., Any]) -> list[str]:
    """Where the user's modules are found here: the root of the function's own module, and the working directory."""
    file = getattr(sys.modules.get(getattr(function, "__module__", "")), "__file__", None)
    depth = str(getattr(function, "__module__", "")).count(".")
    path = Path(file).resolve() if file else None
    root = [str(path.parents[depth + (path.name == "__init__.py")])] if path else []
    return [*root, os.getcwd()]


def _cloudpickle() -> Any:
    try:
        import cloudpickle
    except ImportError:
        return None
    return cloudpickle


def _values(run: Run) -> list[Any]:
    """What every rank has returned, in the order of ranks."""
    contents, world_size = _returned(run)
    missing = sorted(set(range(world_size)) - set(contents))
    if missing or not world_size:
        raise CommandError(f"{run.id} has sent no results from ranks {missing}", hint=f"distlaunch logs {run.id}")
    return [_unpacked(_content(run, rank, contents[rank])["value"], rank) for rank in range(world_size)]


def _error(run: Run, result: Result) -> WorkerError:
    """The error for what the function raised on the rank that failed first, or for why the run failed."""
    cause = result.cause
    message = cause.message if cause else result.state
    if cause is None or cause.rank is None:
        return WorkerError(message, result)
    message = f"rank {cause.rank} on {cause.host}: {message}"
    content: Mapping[str, Any] = {}
    with suppress(LaunchError):  # what else is known of the failure remains
        contents, _ = _returned(run)
        content = _content(run, cause.rank, contents[cause.rank]) if cause.rank in contents else {}
    if content.get("ok", True):  # the function has returned, and its process failed after that
        return WorkerError(message, result)
    error = WorkerError(message, result, content["traceback"])
    if content["value"]:
        with suppress(CommandError):  # its class is not installed here
            error.__cause__ = _unpacked(content["value"], cause.rank)
    return error


def _returned(run: Run) -> tuple[Mapping[int, _Packed], int]:
    """The packed results of the ranks in the last round, or the files that have them, and the number of ranks."""
    rounds: dict[tuple[int, int], dict[int, _Packed]] = {}
    world_size = 0
    for event in run.events(follow=False):
        about = event.fields if isinstance(event, NodeEvent) else {}
        key = (about.get("attempt") or 0, about.get("round") or 0)
        if isinstance(event, NodeEvent) and event.name == "rendezvous" and key >= max(rounds, default=key):
            world_size = about.get("world_size") or 0
            rounds.setdefault(key, {})
        elif isinstance(event, NodeEvent) and event.name == "returned":
            ranks, rank = rounds.setdefault(key, {}), about.get("rank") or 0
            if "path" in about:
                ranks[rank] = str(about["path"])
            else:
                so_far = ranks.get(rank) if about.get("part") else None
                so_far = so_far if isinstance(so_far, bytearray) else bytearray()
                so_far += base64.b64decode(about.get("data") or "")
                ranks[rank] = so_far
    return rounds[max(rounds)] if rounds else {}, world_size


def _content(run: Run, rank: int, packed: _Packed) -> Mapping[str, Any]:
    """What `launcher/agent/node/called.py` has written for a rank."""
    content: Mapping[str, Any] = _unpacked(_large(run, rank, packed) if isinstance(packed, str) else packed, rank)
    return content


def _large(run: Run, rank: int, path: str) -> bytes:
    """A result that a rank has left in a file, if that file is in the run's directory here."""
    if not Path(path).is_relative_to(run.path):
        raise CommandError(
            f"what rank {rank} returned is too large to be sent: it is in {path} on its node",
            hint="have the function write it to a file, and return the file's name",
        )
    with storage.read_errors(Path(path)):
        return trust.read("result", Path(path), limit_bytes=_RESULT_BYTES)


def _unpacked(packed: bytes | bytearray, rank: int) -> Any:
    try:
        return pickle.loads(packed)  # noqa: S301 - from the run's own nodes
    except Exception as error:
        raise CommandError(f"what rank {rank} returned cannot be read here: {error!r}") from error
