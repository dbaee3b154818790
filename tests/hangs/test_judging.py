"""What counts as a hang, by what the nodes have answered."""

from __future__ import annotations

from typing import Any

from launcher.agent.stacks import judging


def node(role: str, ranks: dict[int, str], used: tuple[float, int]) -> dict[str, Any]:
    """A node of that role whose ranks are in these functions."""
    groups = [
        {"ranks": [rank], "frames": [{"file": "x.py", "function": name, "line": 7}], "threads": [], "state": None}
        for rank, name in ranks.items()
    ]
    return {"host": "n1", "role": role, "groups": groups, "used": {str(rank): used for rank in ranks}}


IDLE, BEGAN, COMPUTES = (0.5, 0), (1.0, 0), (31.0, 0)
TRAINS = {0: "step", 1: "step", 2: "step"}


def test_a_role_that_computes_is_no_hang_though_one_of_another_role_waits_for_requests() -> None:
    serves = node("server", {3: "accept"}, IDLE)
    before, after = (judging.sample([node("trainer", TRAINS, used), serves]) for used in (BEGAN, COMPUTES))

    assert judging.judge(before, after, 30.0) is None


def test_an_idle_rank_is_odd_among_the_busy_ones_of_its_role() -> None:
    rest = [node("trainer", {3: "load"}, IDLE), node("server", {4: "accept"}, IDLE)]
    before, after = (judging.sample([node("trainer", TRAINS, used), *rest]) for used in (BEGAN, COMPUTES))

    hang = judging.judge(before, after, 30.0)

    assert hang is not None
    assert hang.odd == [3]


def test_ranks_that_move_data_in_collectives_do_not_hang_and_a_little_is_no_evidence() -> None:
    """What is below a rank may write, too, such as a program that reports what the host uses."""
    frames = [
        {"file": "/torch/distributed/distributed_c10d.py", "function": "all_reduce", "line": 4},
        {"file": "train.py", "function": "step", "line": 88},
    ]
    group = {"ranks": [0, 1], "frames": frames, "threads": [], "state": None}

    def at(used: int) -> judging.Sample:
        used_by = {"0": (25.0, used), "1": (25.0, 0)}
        return judging.sample([{"host": "n1", "role": "", "groups": [group], "used": used_by}])

    assert judging.judge(at(0), at(1 << 30), 30.0) is None
    assert judging.judge(at(0), at(1 << 20), 30.0) is not None


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
