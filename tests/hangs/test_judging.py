"""What counts as a hang, by what the nodes have answered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.protocol import encode_event
from launcher.agent.stacks import judging
from launcher.agent.stacks.stack import fitting, grouped

if TYPE_CHECKING:
    from collections.abc import Iterator


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


def reads(rank: int) -> dict[str, Any]:
    """A program that is no Python, in a read of a socket of its own."""
    state = f"S (sleeping), read of socket:[{9000 + rank}], in unix_stream_read_generic"
    return {"ranks": [rank], "frames": [], "threads": [], "state": state}


def nodes(busy: int, cpu: float) -> list[dict[str, Any]]:
    """Two nodes with 64 such ranks each; rank `busy` has used so much CPU time."""
    return [
        {
            "host": f"n{at}",
            "role": "",
            "groups": [reads(rank) for rank in range(64 * at, 64 * (at + 1))],
            "used": {str(rank): (cpu if rank == busy else 0.1, 0) for rank in range(64 * at, 64 * (at + 1))},
        }
        for at in (0, 1)
    ]


def test_each_of_many_ranks_counts_though_all_are_in_places_of_their_own() -> None:
    before, after = (judging.sample(nodes(100, cpu)) for cpu in (1.0, 31.0))

    assert judging.judge(before, after, 30.0) is None


def test_a_rank_that_computes_is_no_hang_though_it_is_not_known_where() -> None:
    """The stacks of a node may be too large for its answer."""
    before, after = (judging.sample([{**each, "groups": []} for each in nodes(100, cpu)]) for cpu in (1.0, 31.0))
    idle = judging.sample(nodes(100, 1.0)[:1])

    assert judging.judge(before._replace(groups=idle.groups), after._replace(groups=idle.groups), 30.0) is None


def test_a_hang_of_many_ranks_in_places_of_their_own_is_told_in_few_words() -> None:
    seen = judging.sample(nodes(0, 1.0))

    hang = judging.judge(seen, seen, 30.0)

    assert hang is not None
    assert len(hang.groups) == 64
    assert hang.message.startswith("rank 0 (n0) does not answer: S (sleeping), read of socket:[9000]")
    assert hang.message.endswith("; and 112 ranks in 112 other places")
    late = judging.missing(seen, range(28, 128), "all_reduce")
    assert late.startswith("rank 28 (n0) never called all_reduce: it does not answer: ")
    assert late.endswith("; and 84 ranks in 84 other places")


def programs(first: str, cpu: float) -> list[dict[str, Any]]:
    """A node with 8 ranks that are no Python, or whose stacks are unknown: the first is idle, the others run."""
    states = [first, *["R (running)"] * 7]
    groups = [{"ranks": [rank], "frames": [], "threads": [], "state": state} for rank, state in enumerate(states)]
    used = {str(rank): (cpu if rank else 0.1, 0) for rank in range(8)}
    return [{"host": "n0", "role": "", "groups": groups, "used": used}]


@pytest.mark.parametrize(
    ("first", "odd"),
    [
        ("S (sleeping), poll, in do_poll", None),
        ("S (sleeping), read of socket:[9000], in unix_stream_read_generic", None),
        ("T (stopped)", [0]),
        ("D (disk sleep), read of /data/x, in folio_wait_bit_common", [0]),
        ("S (sleeping), read of /data/x, in request_wait_answer", [0]),
    ],
)
def test_programs_that_compute_for_one_that_waits_are_no_hang_and_those_that_spin_for_one_that_is_held_are(
    first: str, odd: list[int] | None
) -> None:
    """A wait in NCCL or MPI spins, so its state is that of a computation."""
    before, after = (judging.sample(programs(first, cpu)) for cpu in (1.0, 31.0))

    hang = judging.judge(before, after, 30.0)

    assert (hang and hang.odd) == odd


def test_a_rank_that_was_held_only_for_a_moment_is_no_evidence() -> None:
    before, after = (
        judging.sample(programs("S (sleeping), poll", 1.0)),
        judging.sample(programs("D (disk sleep)", 31.0)),
    )

    assert judging.judge(before, after, 30.0) is None


def test_stacks_that_are_too_large_are_sent_without_other_threads_and_then_with_fewer_frames() -> None:
    library = [{"file": "/x/site-packages/a.py", "function": f"f{at}", "line": at} for at in range(20)]
    frames: list[Any] = [*library, {"file": "/x/train.py", "function": "step", "line": 88}, *library]
    group = {"frames": frames, "threads": [frames] * 16, "state": None}
    groups: list[Any] = [{"ranks": [rank], **group} for rank in (0, 1)]
    whole, alone = (len(json.dumps(each)) for each in (groups, [{**each, "threads": []} for each in groups]))

    assert fitting(groups, whole) == groups
    assert fitting(groups, alone) == [{**each, "threads": []} for each in groups]
    least = fitting(groups, alone - 1)
    assert [each["ranks"] for each in least] == [[0], [1]]
    assert [frame["function"] for frame in least[0]["frames"]] == [*(f"f{at}" for at in range(13, 20)), "step"]


def test_the_event_of_a_hang_in_many_long_stacks_has_its_message_and_the_odd_rank() -> None:
    """Each node's answer is short enough, but not what all of them have."""
    name = "/opt/env/lib/python3.12/site-packages/a_library/with/a_deep/tree/of/modules.py"
    frames: list[Any] = [{"file": name, "function": f"function_{at}", "line": at} for at in range(40)]
    own = {"file": "/x/train.py", "function": "step", "line": 88}

    def answers() -> Iterator[dict[str, Any]]:
        for rank in range(64):
            at = [{**frames[0], "line": rank}, *frames, {**own, "line": rank if rank < 8 else 88}]
            group = {"ranks": [rank], "frames": at, "threads": [frames] * 16, "state": None}
            yield {"host": "n0", "role": "", "groups": [group], "used": {str(rank): (0.1, 0)}}

    seen = judging.sample([*answers()])
    hang = judging.judge(seen, seen, 30.0)

    assert hang is not None
    line = encode_event("hang", 0, odd=hang.odd, message=hang.message, groups=hang.groups, action="warn")
    event = json.loads(line)
    assert (event["odd"], event["message"], event["action"]) == ([*range(8)], hang.message, "warn")
    assert [group["ranks"] for group in event["groups"]] == [[rank] for rank in range(64)]
    assert all(own["file"] in (frame["file"] for frame in group["frames"]) for group in event["groups"])


class Rank(int):
    """A rank that counts how often it is put into a set."""

    hashed = 0

    def __hash__(self) -> int:
        Rank.hashed += 1
        return int(self)


def test_the_stacks_of_many_nodes_are_grouped_in_one_pass() -> None:
    """Node 0 attends to nothing else meanwhile."""
    frames: list[Any] = [{"file": "train.py", "function": "step", "line": 88}]

    (group,) = grouped({"ranks": [Rank(at)], "frames": frames, "threads": [], "state": None} for at in range(1000))

    assert group["ranks"] == [*range(1000)]
    assert Rank.hashed <= 4000
