"""Starting a run again in its folder: by a person, or because it lost a host and has spares."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from launcher import lock, output, runs
from launcher.cli import _observe, _undo
from launcher.errors import RequestError

if TYPE_CHECKING:
    from launcher.backends._base import Backend, Handle
    from launcher.runs import Run


def start(run: Run, backend: Backend[Any], attempt: int, *, doing: str) -> Run:
    """The run, started again; where that cannot be done, it is left as it had ended."""
    with lock.hold(run.whole_path, doing, submits=True):
        now = _observe.sent(_observe.whole(runs.read(run.path.parent, run.path.name))) if run.whole_path == run.path else run
        if (known := now.handle) is None or now.attempt >= attempt:
            raise RequestError(f"{run.id} was started again meanwhile", hint=f"distlaunch status {run.id}")
        now = replace(now, ended=now.result)
        begun: Handle | None = None

        def note(handle: Handle, submitting: str | bool) -> None:
            runs.start_again(run, runs.before({**handle, "submitting": submitting}, now), attempt)

        def record(handle: Handle) -> None:
            nonlocal begun
            begun = handle
            note(handle, submitting=True)

        try:
            return runs.start_again(run, backend.requeue(known, attempt, record), attempt)
        except BaseException as error:
            if left := _undo.undo(backend, begun, error):
                output.warn(f"what was started may still run there: {left}; to end it: distlaunch cancel --force {run.id}")
                note(begun or {}, left)
            elif begun is not None:
                runs.give_back(now)
            raise
