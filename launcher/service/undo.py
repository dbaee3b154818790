"""Undo a failed submission, and what its run has come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.agent.failures import Failure
from launcher.console import live_line
from launcher.errors import LaunchError

if TYPE_CHECKING:
    from launcher.backends._base import AnyBackend
    from launcher.results.run import Cause, RunState
    from launcher.runs.handle import Handle


def undo(backend: AnyBackend, begun: Handle | None, error: BaseException) -> str:
    """End what was started, as recorded last. Returns why something may be left; empty if nothing is."""
    if begun is None:
        return ""
    try:
        with live_line.waiting("ending what was started"):
            backend.undo(begun)
    except LaunchError as problem:
        return problem.message
    return error.message if isinstance(error, LaunchError) and error.in_part else ""


def unsubmitted(state: str, error: BaseException | None = None) -> RunState:
    """The outcome of a run of which nothing was sent, or nothing is left."""
    from launcher.results import run as results  # a launch that succeeds does not need it

    message = "cancelled before it was submitted" if state == Failure.CANCELLED else str(error)
    kind = Failure.CANCELLED if state == Failure.CANCELLED else Failure.SUBMISSION
    exit_code = getattr(error, "exit_code", 4) if kind.about.exit_code is None else kind.about.exit_code
    cause: Cause = {"class": kind, "message": message, "may_come_back": kind.about.may_come_back}
    return {
        **results.nothing(Failure.CANCELLED if state == Failure.CANCELLED else "failed"),
        "exit_code": exit_code,
        "cause": cause,
    }
