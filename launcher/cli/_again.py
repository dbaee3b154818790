"""Starting a run again in its folder: by a person, or because it lost a host and has spares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher import lock, runs
from launcher.errors import RequestError

if TYPE_CHECKING:
    from launcher.backends._base import Backend, Handle
    from launcher.runs import Run


def start(run: Run, backend: Backend[Any], attempt: int, *, doing: str) -> Run:
    """The run, started again; where that cannot be done, it is left as it had ended."""
    with lock.hold(run.whole_path, doing, submits=True):
        now = runs.read(run.path.parent, run.path.name) if run.whole_path == run.path else run
        if now.attempt >= attempt:
            raise RequestError(f"{run.id} was started again meanwhile", hint=f"distlaunch status {run.id}")
        before, begun = run.result, False

        def record(handle: Handle) -> None:
            nonlocal begun
            begun = True
            runs.start_again(run, {**handle, "submitting": True}, attempt)

        try:
            return runs.start_again(run, backend.requeue(run.handle or {}, attempt, record), attempt)
        except BaseException:
            if begun:
                runs.record_handle(run, run.handle or {})
                if before is not None:
                    runs.finish(run, before)
            raise
