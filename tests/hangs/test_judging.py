"""What counts as a hang, by what the nodes have answered."""

from __future__ import annotations

from typing import Any

from launcher.agent.stacks import judging


def answer(state: str, **used: tuple[float, int]) -> dict[str, Any]:
    """A node with rank 1 in this state; `used` by rank, of those that run."""
    group = {"ranks": [1], "frames": [], "threads": [], "state": state}
    return {"host": "n1", "role": "", "groups": [group], "used": used}


def test_an_idle_rank_is_a_hang_and_between_two_rounds_there_is_none() -> None:
    idle = judging.sample([answer("stopped", **{"1": (0.5, 0)})])
    ended = judging.sample([answer("it has ended")])

    assert judging.judge(idle, idle, 1.0) is not None
    assert judging.judge(idle, ended, 1.0) is None
    assert judging.judge(ended, ended, 1.0) is None
