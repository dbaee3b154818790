"""How a run ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The first failure of a run: what everything after it follows from."""

    failure_class: str
    """As docs/agent-stream.md lists them: `user_code`, `out_of_memory`, `node`, `cancelled`, …"""

    message: str
    rank: int | None = None
    """None: it was no worker's."""

    local_rank: int | None = None
    node: int | None = None
    host: str | None = None
    exit_code: int | None = None
    """Of that worker, where it ended with one."""

    signal: str | None = None
    """The signal that ended it, as `SIGSEGV`."""

    traceback: str | None = None
    may_come_back: bool = False
    """Whether starting the run again may help: not where the script would fail again."""

    @classmethod
    def from_json(cls, cause: Mapping[str, Any]) -> Cause:
        """The cause as a run's record has it."""
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
    """What `distlaunch` ends with when it has followed such a run."""

    cause: Cause | None
    """None after a success."""

    duration_s: float | None
    restarts: int
    """How often its workers were started again by their agents."""

    attempt: int
    """How often the run as a whole was started again."""

    @property
    def ok(self) -> bool:
        """Whether it has ended well."""
        return self.state == "success"

    @classmethod
    def from_json(cls, run: str, state: Mapping[str, Any]) -> Result:
        """The result in what `distlaunch status --output json` says of a run that has ended."""
        cause = state.get("cause")
        took = state.get("duration_s")
        return cls(
            run=run,
            state=str(state.get("state")),
            exit_code=int(state["exit_code"]),
            cause=Cause.from_json(cause) if cause else None,
            duration_s=float(took) if took is not None else None,
            restarts=int(state.get("restarts") or 0),
            attempt=int(state.get("attempt") or 0),
        )
