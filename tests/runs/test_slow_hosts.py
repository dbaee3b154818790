"""Which hosts were slow for most of a run, from samples as agents write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.agent.protocol import Event
from launcher.runs import samples, slow_hosts

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.runs.samples import NodeSample

HOSTS = ("n0", "n1", "n2", "n3")
EVERY_S, COUNT = 10.0, 180
"""Half an hour."""


def nodes(of: Callable[[int, float], dict[str, Any]], hosts: int = 4, ranks: int = 2) -> dict[int, list[NodeSample]]:
    """The samples of a run; `of` gives the columns of a rank at a time since its start."""
    found = {}
    for node in range(hosts):
        series, own = samples.Series(1000), list(range(node * ranks, (node + 1) * ranks))
        for number in range(COUNT):
            each = [of(rank, number * EVERY_S) for rank in own]
            columns = {name: [one[name] for one in each] for name in each[0]}
            fields = {"time": 1000.0 + number * EVERY_S, "node": node, "sample": number, "whole": True, "ranks": own}
            series.add(Event("sample", {**fields, **columns}))
        found[node] = series.samples
    return found


def steps(at_s: float, *slow: tuple[float, float]) -> dict[str, Any]:
    """A rank that makes 4 steps a second, and 2 between these times."""
    lost = sum(min(max(at_s - begin, 0.0), end - begin) for begin, end in slow)
    step = int(4 * at_s - 2 * lost)
    return {"rank_step": step, "rank_time": 1000.0 + at_s}


def found(run: dict[int, list[NodeSample]]) -> list[tuple[str, str]]:
    return [(one["host"], one["kind"]) for one in slow_hosts.lasting(run, HOSTS)]


def test_a_host_that_is_slow_for_most_of_the_run_is_named_with_its_numbers() -> None:
    run = nodes(lambda rank, at: steps(at, *[(300.0, 1800.0)] * (rank in (4, 5))))
    (one,) = slow_hosts.lasting(run, HOSTS)

    assert (one["host"], one["kind"]) == ("n2", "slow")
    assert one["message"].startswith("all 2 ranks of the host; rank ")


def test_what_was_slow_for_a_while_or_is_one_rank_is_not_the_host() -> None:
    assert found(nodes(lambda rank, at: steps(at, *[(300.0, 900.0)] * (rank in (4, 5))))) == []
    assert found(nodes(lambda rank, at: steps(at, *[(0.0, 1800.0)] * (rank == 4)))) == []


def test_of_two_hosts_none_is_slow() -> None:
    assert found(nodes(lambda rank, at: steps(at, *[(0.0, 1800.0)] * (rank == 2)), hosts=2, ranks=1)) == []


def test_that_rank_0_writes_logs_and_that_a_gpu_waits_say_nothing_of_hosts() -> None:
    """A host that keeps its CPUs busy while the others wait is slow; node 0 may have work that the others have not."""

    def busy(host: int) -> Callable[[int, float], dict[str, Any]]:
        return lambda rank, _: {"rank_cpu": 1.0 if rank == host else 0.1, "gpu_use": 10 if rank == host else 95}

    assert found(nodes(busy(2), ranks=1)) == [("n2", "busy")]
    assert found(nodes(busy(0), ranks=1)) == []
