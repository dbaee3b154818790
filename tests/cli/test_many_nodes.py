"""`status` of many nodes: how many there are of each kind, and those that are odd, on which host."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from launcher.agent.protocol import encode_event
from launcher.console import node_table
from launcher.runs import records

if TYPE_CHECKING:
    from tests.command import Cli

NODES = 500


def node(number: int, **more: Any) -> dict[str, Any]:
    """A node that runs."""
    seen = 1000.0
    own = {"node": number, "host": f"h{number}", "ranks": [number], "workers": 1, "started": 1.0, "last_seen": seen}
    return {**own, "stopping": "", "result": None, "cause": None, "lines_lost": 0, **more}


def test_nodes_that_are_odd_are_named_the_worst_first() -> None:
    nodes = [node(number) for number in range(NODES)]
    nodes[3] = node(3, started=None, last_seen=None, workers=None, ranks=[])
    nodes[70] = node(70, last_seen=960.0)
    nodes[499] = node(499, result="failed", workers=0)
    nodes[8] = node(8, result="success", workers=0)

    found = node_table.lines(nodes, whole=False)

    assert found[1] == "nodes    1 failed, 1 late, 1 waiting, 496 running, 1 success"
    rows = [line.split()[:2] for line in found[3:-1]]
    assert rows == [["NODE", "HOST"], ["499", "h499"], ["70", "h70"], ["3", "h3"]]
    assert found[-1] == "(all 500 nodes: distlaunch status --all)"
    assert len(node_table.lines(nodes, whole=True)) == NODES + 2


def test_many_that_are_odd_alike_share_a_row_and_a_run_that_waits_as_a_whole_has_no_table() -> None:
    failed = [node(number, result="failed" if number % 2 else None) for number in range(NODES)]
    found = node_table.lines(failed, whole=False)
    assert len(found) == 6
    assert found[4].startswith("1,3,5,7,9,11,13,15 and 242 more  h[1,3,5,7,9,11,13,15] and 242 more  ")
    assert found[-1] == "(all 500 nodes: distlaunch status --all)"

    waiting = [node(number, started=None, last_seen=None, workers=None) for number in range(NODES)]
    assert node_table.lines(waiting, whole=False)[1:] == [
        "nodes    500 waiting",
        "(all 500 nodes: distlaunch status --all)",
    ]


def test_status_prints_the_summary_and_json_has_all_nodes(distlaunch: Cli) -> None:
    path = distlaunch.runs / "many-20261120-140000-abcd"
    rows = [{"node_rank": number, "host": f"h{number}", "workers": 1} for number in range(40)]
    records.create(records.Run(id=path.name, path=path, created=time.time(), backend="local", plan={"nodes": rows}))
    for number in range(40):
        (path / "nodes" / str(number)).mkdir(parents=True)
        exit_code = int(number == 7)
        result = "failed" if exit_code else "success"
        done = encode_event("done", number, result=result, exit_code=exit_code, cause=None, restarts=0, duration_s=1.0)
        (path / "nodes" / str(number) / "stream").write_bytes(done)
    handle: Any = {"run_dir": str(path), "hosts": [row["host"] for row in rows]}
    records.record_handle(records.Run(id=path.name, path=path, backend="local", plan={"nodes": rows}), handle)

    brief = distlaunch("status", "many").stdout
    assert "nodes    1 failed, 39 success\n" in brief
    assert [line.split()[1] for line in brief.splitlines() if " h" in line] == ["h7"]
    assert sum(" h" in line for line in distlaunch("status", "--all", "many").stdout.splitlines()) == 40
    assert len(json.loads(distlaunch("status", "--output", "json", "many").stdout)["result"]["nodes"]) == 40
