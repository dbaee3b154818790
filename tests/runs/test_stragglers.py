"""Which ranks and hosts are odd, and how far a run is, from samples as agents write them."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.protocol import Event
from launcher.runs import progress, samples, stragglers

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.runs.samples import NodeSample

HOSTS = ("n0", "n1")
Nodes = dict[int, list["NodeSample"]]


def nodes(of: Callable[[int, int], dict[str, Any]], *, ranks: int = 4, count: int = 20, every_s: float = 10.0) -> Nodes:
    """The samples of two nodes; `of` gives the columns of a rank at one sample."""
    found: Nodes = {}
    for node in range(2):
        series = samples.Series(1000)
        own = list(range(node * ranks, node * ranks + ranks))
        for number in range(count):
            each = [of(rank, number) for rank in own]
            columns = {name: [one[name] for one in each] for name in each[0]}
            fields = {"time": 1000.0 + number * every_s, "node": node, "sample": number, "whole": True, "ranks": own}
            series.add(Event("sample", {**fields, **columns}))
        found[node] = series.samples
    return found


def steps(rank: int, number: int, step_s: float, jitter_s: float = 0.0) -> dict[str, Any]:
    """A rank that needs that long for a step; it tells some of them later, by up to the jitter."""
    step = int(number * 10 / step_s)
    late_s = rank * 0.001 + jitter_s * random.Random(100 * rank + number).random()
    return {"rank_step": step, "rank_time": 1000.0 + step * step_s + late_s}


def test_a_rank_that_takes_longer_for_its_steps_is_named_with_its_source() -> None:
    (found,) = stragglers.find(nodes(lambda rank, n: steps(rank, n, 0.4 if rank == 5 else 0.25)), HOSTS)

    assert (found["kind"], found["node"], found["host"], found["rank"]) == ("slow", 1, "n1", 5)
    assert found["message"] == "rank 5 takes 0.4 s for a step, the others 0.25 s"
    assert found["source"] == "intervals between the progress of 8 ranks"


def test_if_all_ranks_of_a_host_are_slow_it_is_the_host() -> None:
    found = stragglers.find(
        nodes(lambda rank, n: steps(rank, n, 0.4 if rank in (4, 5, 6, 7) else 0.25), ranks=4), HOSTS
    )
    assert found == [], "half of all: there are no others"

    slow = nodes(lambda rank, n: steps(rank, n, 0.25), ranks=4)
    slow[1] = nodes(lambda rank, n: steps(rank, n, 0.4), ranks=1)[1]
    (one,) = stragglers.find(slow, HOSTS)
    assert (one["host"], one["rank"]) == ("n1", 1)
    slow[1] = nodes(lambda rank, n: steps(rank, n, 0.4), ranks=2)[1]
    (both,) = stragglers.find(slow, HOSTS)
    assert (both["host"], both["rank"]) == ("n1", None)
    assert both["message"].startswith("all 2 ranks of the host; rank ")


def test_what_is_usual_is_not_odd() -> None:
    """A rank whose steps are 20 % longer, in a run in which single steps vary by more than that."""
    even = nodes(lambda rank, n: steps(rank, n, 0.3 if rank == 5 else 0.25))
    uneven = nodes(lambda rank, n: steps(rank, n, 0.3 if rank == 5 else 0.25, jitter_s=2.5))

    assert [one["rank"] for one in stragglers.find(even, HOSTS)] == [5]
    assert stragglers.find(uneven, HOSTS) == []


def test_a_rank_that_computes_while_the_others_wait_is_named() -> None:
    found = stragglers.find(nodes(lambda rank, _: {"rank_cpu": 0.95 if rank == 2 else 0.2}), HOSTS)

    assert [(one["kind"], one["rank"]) for one in found] == [("busy", 2)]
    assert "keeps 0.95 CPUs busy, the others 0.20" in found[0]["message"]


def test_a_gpu_that_idles_is_named() -> None:
    series = {}
    for node in range(2):
        decoder = samples.Series(100)
        for number in range(10):
            use = [97, 95, 40 if node else 96, 98]
            own = list(range(node * 4, node * 4 + 4))
            fields = {"time": 10.0 * number, "node": node, "sample": number, "whole": True, "ranks": own}
            decoder.add(Event("sample", {**fields, "gpu_use": use}))
        series[node] = decoder.samples

    (found,) = stragglers.find(series, HOSTS)
    assert (found["kind"], found["host"], found["rank"]) == ("idle_gpu", "n1", 6)
    assert found["message"] == "the GPU of rank 6 is idle for 60 % of the time, the others for 4 %"


@pytest.mark.parametrize("ranks", [1, 4])
def test_ranks_that_are_alike_or_tell_nothing_are_not_odd(ranks: int) -> None:
    assert stragglers.find(nodes(lambda rank, n: steps(rank, n, 0.25 + rank * 0.001), ranks=ranks), HOSTS) == []
    assert stragglers.find(nodes(lambda _rank, _n: {"rank_lines": 3}, ranks=ranks), HOSTS) == []
    assert stragglers.find({}, HOSTS) == []


def test_progress_is_that_of_the_slowest_rank_and_its_rate_that_of_the_last_minutes() -> None:
    """The first half took twice as long; the rate is that of the second, and the time since the last mark counts."""

    def of(rank: int, number: int) -> dict[str, Any]:
        step = number if number < 60 else 60 + (number - 60) * 2
        return {
            "rank_step": step - rank, "rank_time": 1000.0 + number * 10.0, "rank_steps": 1000, "rank_loss": rank or 0.5
        }  # fmt: skip

    told = nodes(of, count=120)
    last = 1000.0 + 1190.0
    found = progress.of_run(told, ended=False, now=last + 5.0)

    assert found == {
        "step": 178 - 7, "steps": 1000, "loss": 0.5, "rate": 0.2, "eta_s": (1000 - 171) / 0.2 - 5.0, "ranks": 8,
        "time": last,
    }  # fmt: skip
    ended = progress.of_run(told, ended=True)
    assert ended is not None
    assert ended["eta_s"] is None


def test_the_rate_begins_anew_after_a_restart() -> None:
    def of(_rank: int, number: int) -> dict[str, Any]:
        step = number * 5 if number < 10 else (number - 10) * 2
        return {"rank_step": step, "rank_time": 1000.0 + number * 10.0}

    found = progress.of_run(nodes(of, count=15), ended=False)
    assert found is not None
    assert (found["step"], found["rate"], found["steps"], found["eta_s"]) == (8, 0.2, None, None)


def test_of_many_samples_evenly_spread_ones_and_the_newest_are_kept() -> None:
    series = samples.Series(100)
    for number in range(10_001):
        fields = {
            "time": float(number),
            "node": 0,
            "sample": number,
            "whole": True,
            "ranks": [0],
            "rank_lines": [number],
        }
        series.add(Event("sample", fields))
    kept = [sample.time for sample in series.samples]

    assert 50 <= len(kept) <= 101
    assert len({round(b - a) for a, b in pairwise(kept[:-1])}) == 1
    assert (kept[0], kept[-1]) == (0.0, 10_000.0)


def test_of_very_many_odd_ranks_each_is_looked_at_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """On each second of 400 nodes one of two ranks computes; each finding is compared with a few others at most."""
    looks = 0

    class Counted(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            nonlocal looks
            looks += key == "kind"
            return super().__getitem__(key)

    def above(*args: Any, really: Callable[..., Any] = stragglers._above, **more: Any) -> Any:
        return [(much, Counted(each)) for much, each in really(*args, **more)]

    monkeypatch.setattr(stragglers, "_above", above)
    two = nodes(lambda rank, n: {"rank_cpu": 0.1 * n if rank in (0, 2, 3) else 10.0 * n}, ranks=2)
    found = stragglers.find({number: two[number % 2] for number in range(400)}, [f"n{n}" for n in range(400)])

    assert len(found) > 100
    assert looks < 20 * len(found)
