"""Which runs a list shows: by state, time and name."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, get_args

from launcher import spec
from launcher.agent.failures import ENDS
from launcher.errors import RequestError, SpecError
from launcher.results.run import State
from launcher.runs import directories
from launcher.system import names
from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Conditions that a run has to meet to be listed; an empty one is met by all."""

    states: frozenset[str] = frozenset()
    since: float = 0.0
    """Unix seconds."""

    name: str = ""

    @classmethod
    def parse(
        cls,
        states: str | Iterable[str] | None = None,
        since: str | float | timedelta | datetime | None = None,
        name: str | None = None,
    ) -> Selection:
        """The conditions as a user gives them: `running,failed`, `2h` (or `2026-11-20`, or seconds), and a run name."""
        words = states.split(",") if isinstance(states, str) else states
        return cls(
            states=frozenset(() if words is None else _states(words)),
            since=_since(since) if since is not None else 0.0,
            name=spec.run_name(name) if name else "",
        )

    def takes(self, run: str, created: float | None) -> bool:
        """Whether a run with this id, created then, meets the conditions on time and name."""
        return (created or 0.0) >= self.since and self.name in ("", directories.name_of(run))

    def takes_state(self, state: str) -> bool:
        """Whether a run in this state is listed."""
        return not self.states or state in self.states


EVERY = Selection()


def _states(words: Iterable[str]) -> list[str]:
    known = [state for part in get_args(State) for state in (get_args(part) or ())]
    known += map(str, ENDS)
    found = [word.strip() for word in words]
    for word in found:
        if word not in known:
            raise RequestError(f"there is no state {word!r}", hint=names.hint(word, known))
    return found


def _since(since: str | float | timedelta | datetime) -> float:
    """The time in Unix seconds: a duration before now, or a local date, with or without a time of day."""
    if isinstance(since, datetime):
        return since.timestamp()
    if not isinstance(since, str):
        return time.time() - (since.total_seconds() if isinstance(since, timedelta) else since)
    return _parsed(since)


def _parsed(text: str) -> float:
    try:
        return time.time() - spec.parse_duration(text, "since")
    except SpecError:
        pass
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        hint = "write 2h, 3d, 2026-11-20 or '2026-11-20 14:30'"
        raise RequestError(f"since {text!r} is neither a duration nor a date", hint=hint) from None
