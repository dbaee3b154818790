"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The first failure of a run, from which all later ones follow."""

    failure_class: str
    """As listed in docs/agent-stream.md: `user_code`, `out_of_memory`, `node`, `cancelled`, …"""

    message: str
    rank: int | None = None
    """None if the failure was not a worker's."""

    local_rank: int | None = None
    node: int | None = None
    host: str | None = None
    exit_code: int | None = None
    """Exit code of that worker, if it exited with one."""

    signal: str | None = None
    """The signal that ended the worker, such as `SIGSEGV`."""

    traceback: str | None = None
    may_come_back: bool = False
    """Whether starting the run again may help; False if the script would fail again."""

    @classmethod
    def from_json(cls, cause: Mapping[str, Any]) -> Cause:
        """The cause from a run's record."""
        known = ("rank", "local_rank", "node", "host", "exit_code", "signal", "traceback")
        return cls(
            failure_class=str(cause.get("class") or ""),
            message=str(cause.get("message") or ""),
            may_come_back=cause.get("may_come_back") is True,
            **{name: cause.get(name) for name in known},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The end of a run."""

    run: str
    """Its id."""

    state: str
    """`success`, `failed`, `cancelled`, `timeout` or `preempted`."""

    exit_code: int
    """Exit code of `distlaunch` after following such a run."""

    cause: Cause | None
    """None after a success."""

    duration_s: float | None
    queued_s: float | None
    """From its submission to the start of its first agent; None without a queue, or after a restart."""

    restarts: int
    """How many times agents have restarted the workers."""

    attempt: int
    """How many times the run as a whole was started again."""

    @property
    def ok(self) -> bool:
        """Whether the run succeeded."""
        return self.state == "success"

    @classmethod
    def from_json(cls, run: str, state: Mapping[str, Any]) -> Result:
        """The result from the `distlaunch status --output json` of a run that has ended."""
        cause = state.get("cause")
        took, queued = state.get("duration_s"), state.get("queued_s")
        return cls(
            run=run,
            state=str(state.get("state")),
            exit_code=int(state["exit_code"]),
            cause=Cause.from_json(cause) if cause else None,
            duration_s=float(took) if took is not None else None,
            queued_s=float(queued) if queued is not None else None,
            restarts=int(state.get("restarts") or 0),
            attempt=int(state.get("attempt") or 0),
        )
