"""The faults that runs are hit with: which process or link, when, and how; drawn from a seed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from tests.chaos.processes import AGENT, GROUP, LAUNCHER, SERVER, TRANSPORT, WORKER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KILL, STALL, CUT = "SIGKILL", "SIGSTOP and SIGCONT", "cut link"
_KINDS = {WORKER: 3, AGENT: 2, SERVER: 2, GROUP: 2, LAUNCHER: 2, TRANSPORT: 1}
_STALLS_S = (0.2, 1.0, 3.0)
TO_THE_END = 600.0


class Blow(NamedTuple):
    """One fault of one run."""

    number: int
    kind: str
    """The kind of process that it hits, or whose host it hits."""

    how: str
    at: float
    """When: a fraction of the time that a run without a fault takes."""

    which: float
    """Which of several processes of that kind: a fraction of the way through them."""

    lasts_s: float
    """How long a process is stopped, or a link cut; `TO_THE_END`: until the run is over."""

    def __str__(self) -> str:
        return f"{self.how} of {self.kind} at {self.at:.2f}"


def draw(seed: int, tries: int, *, transports: bool = False, cuts_s: Sequence[float] = ()) -> Iterator[Blow]:
    """Draw `tries` faults, always the same for a seed.

    Args:
        transports: whether something carries the run (`TRANSPORT`).
        cuts_s: how long links of its hosts are cut; empty if the hosts have no links.
    """
    chance = random.Random(seed)
    kinds = {kind: weight for kind, weight in _KINDS.items() if transports or kind != TRANSPORT}
    hows = {KILL: 4, STALL: 2, **({CUT: 1} if cuts_s else {})}
    for number in range(tries):
        how = _choice(chance, hows)
        kind = AGENT if how == CUT else _choice(chance, kinds)
        lasts_s = chance.choice(_STALLS_S if how != CUT else cuts_s)
        yield Blow(number, kind, how, chance.random(), chance.random(), lasts_s)


def _choice(chance: random.Random, weights: dict[str, int]) -> str:
    return chance.choices(list(weights), list(weights.values()))[0]
