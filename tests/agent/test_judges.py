"""After a timeout in a collective, one node finds out who did not come, and the others wait for what it finds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.group.waits import Waits
from launcher.agent.group.workers import Workers

if TYPE_CHECKING:
    from tests.agent.stores import Served

BARRIER = {"class": "collective", "message": "RuntimeError: rank 1 failed to pass monitoredBarrier in 5000 ms"}
FOUND = {**BARRIER, "message": "a collective timed out: rank 0 timed out in a collective; rank 1 had not joined it"}


def node(served: Served, number: int, found: dict[str, Any]) -> Any:
    """One of two nodes; `found`: what the stacks of all ranks tell it."""
    late: Any = SimpleNamespace(limit_s=600.0, explained=lambda *_: found)
    sent: list[Any] = []
    requests, agent = SimpleNamespace(first_rank=0), SimpleNamespace(send=sent.append)
    waits = Waits(served.client(), number, 2, 2, late)
    return SimpleNamespace(requests=requests, _waits=waits, _world=2, _agent=agent, sent=sent)


@pytest.mark.parametrize("found", [BARRIER, FOUND], ids=["nothing", "who did not come"])
def test_the_others_wait_no_longer_than_the_one_that_finds_out_needs(served: Served, found: dict[str, Any]) -> None:
    own: Any = {**BARRIER, "message": "RuntimeError: rank 0 is not there"}
    judge, other = node(served, 0, found), node(served, 1, own)
    assert (judge._waits.judges(), other._waits.judges()) == (True, False)
    assert not other._waits.are_known

    said: Any = Workers._explained(judge, BARRIER, judges=True, collective=True)  # type: ignore[arg-type]
    other._waits.look()

    assert said == found
    assert other._waits.are_known
    expected = own if found is BARRIER else FOUND
    assert Workers._explained(other, own, judges=False, collective=True) == expected
    assert other.sent == ([] if found is BARRIER else [{"first_cause": FOUND}])
