"""Many hosts in one message: folded as Slurm writes them, and one line for what is said of all of them."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from launcher.agent.protocol import Event
from launcher.agent.schedulers import slurm
from launcher.agent.system.folding import counted, folded, in_order, ranges
from launcher.backends._plan import PlannedNode
from launcher.console import alike_rows, summary
from launcher.console.announce import Announcer
from launcher.console.worker_output import WorkerOutput
from launcher.system import hosts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.backends._plan import Plan

NODES = 1000


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([*(f"n{number}" for number in range(512)), "n600"], "n[0-511,600]"),
        (["n10", "n9"], "n10, n9"),
        (["n07", "n08", "n09", "n10", "n11"], "n[07-11]"),
        (["n7", "n8", "n09", "n10"], "n[7-8,09-10]"),
        ([f"gpu{number}-ib0" for number in range(5)], "gpu[0-4]-ib0"),
        ([f"r{rack}-n{number}.x1.org" for rack in (1, 2) for number in range(4)], "r1-n[0-3].x1.org, r2-n[0-3].x1.org"),
        ([f"10.0.0.{number}" for number in range(1, 65)], "10.0.0.[1-64]"),
        (["login", "a,b", "fe80::1", "fe80::2"], "a,b, fe80::1, fe80::2, login"),
        (range(9), "0-8"),
        ([], ""),
        ([f"n{2 * number}" for number in range(100)], "n[0,2,4,6] and 96 more"),
        (["a", "b", "c", "d", "e", "n1", "n2"], "a, b, c, d and 3 more"),
    ],
)
def test_names_are_folded(names: Sequence[object], text: str) -> None:
    assert folded(names, 4) == text


def test_slurm_reads_what_is_folded() -> None:
    chosen = random.Random(7)
    for _ in range(100):
        names = {
            f"r{chosen.randrange(3)}-n{chosen.randrange(40):0{chosen.choice((1, 2, 3))}}"
            for _ in range(chosen.randrange(1, 60))
        }
        found = slurm.expand(folded(names, NODES).replace(", ", ","))
        assert len(found) == len(names)
        assert {*found} == names
        shuffled = chosen.sample([*names, "login", "a", "gpu7-ib0", "gpu8-ib0"], len(names) + 4)
        assert slurm.expand(in_order(shuffled)) == shuffled
    assert in_order(["n2", "n3", "n1", "a", "gpu7-ib0", "gpu8-x", "gpu9-x"]) == "n[2-3,1],a,gpu7-ib0,gpu8-x,gpu9-x"


def test_numbers_are_counted() -> None:
    assert counted([3], "rank") == "rank 3"
    assert counted([5, 0, 1, 2], "node") == "nodes 0-2,5"
    assert ranges([4, 0, 1]) == "0-1,4"


def test_what_is_said_of_a_host_by_its_own_name_is_alike() -> None:
    said = {f"n{number}": f"ssh: connect to host n{number} port 22: Connection refused" for number in range(20)}
    said |= {"n7": "no torch", "n20": "no torch in n2"}

    assert hosts.lines(said) == [
        "n[0-6,8-19]: ssh: connect to host n[0-6,8-19] port 22: Connection refused",
        "n7: no torch",
        "n20: no torch in n2",
    ]


def test_hosts_of_which_a_long_table_tells_the_same_share_a_row() -> None:
    rows = [(f"n{number}", number, "FAIL" if number == 7 else "OK") for number in range(NODES)]

    assert alike_rows.folded(rows) == [("n[0-6,8-999]", "0-6,8-999", "OK"), ("n7", 7, "FAIL")]
    assert alike_rows.folded(rows[:20]) == rows[:20]


def test_a_thousand_nodes_with_one_fault_are_one_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All within a moment, however busy this machine is."""
    monkeypatch.setattr("launcher.console.announce.time", SimpleNamespace(monotonic=lambda: 1000.0))
    names = [f"n{node}" for node in range(NODES)]
    announcer = Announcer(names, WorkerOutput(frozenset()))
    full = "the disk of the run directory is full"
    for node in range(NODES):
        announcer.record(node, Event("warning", {"message": "no torch"}))
        announcer.record(node, Event("lines_lost", {"lines": 2, "ranks": [node], "reason": full}))
        announcer.silent(node, 90.0 + node / NODES)
    announcer.close()

    said = capfd.readouterr().err.splitlines()
    assert len(said) == 3, said
    assert "warning: 1000 nodes (n[0-999]): no torch" in said
    assert f"warning: 1000 nodes (n[0-999]): 2,000 lines were not kept: {full}" in said
    assert any(line.startswith("1000 nodes (n[0-999]) have sent nothing for 90 s, though") for line in said)


def test_the_plan_of_many_hosts_is_a_few_rows() -> None:
    nodes = tuple(PlannedNode(node_rank=node, host=f"n{node + 1:03}", workers=8) for node in range(500))
    plan = cast("Plan", SimpleNamespace(nodes=nodes, master="n001:29500"))

    rows = summary.plan_table(plan).splitlines()

    assert [row.split() for row in rows[1:]] == [["n[001-500]", "0-499", "0-3999", "n001:29500"]]
