"""`status` and `top` name the hang in which a run is now, and have it no more once the run goes on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.protocol import Event, encode_event
from launcher.runs.hanging import Hanging
from launcher.runs.samples import NodeSample
from testbed import wait_until
from tests.hangs.conftest import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.results.progress import Watched
    from tests.command import Cli

LONG_BYTES = 32 << 20
"""Longer streams are read at their ends only."""

SCRIPT = """
import os, sys, time

RANK = os.environ["RANK"]

def meet():
    open(f"gate{RANK}").read()

def apart():
    open(f"gate{RANK}").read()

print("::distlaunch progress step=1/10000", flush=True)
time.sleep(2)
print("::distlaunch progress step=2/10000", flush=True)
print("ready", flush=True)
(apart if RANK == "2" else meet)()
for step in range(3, 10000):
    if sys.argv[1] == "line":
        print("goes on", flush=True)
    else:
        open(os.environ["DISTLAUNCH_PROGRESS_FILE"], "w").write(f"step={step}/10000")
    time.sleep(0.5)
"""


@pytest.mark.parametrize("tells", ["line", "file"])
def test_a_hang_is_shown_until_the_run_goes_on(distlaunch: Cli, start: Callable[..., str], tells: str) -> None:
    gates = [distlaunch.directory / f"gate{rank}" for rank in range(3)]
    for gate in gates:
        os.mkfifo(gate)
    script = str(distlaunch.write("gates.py", SCRIPT))
    run = start("--nproc-per-node=3", "--samples=1", "--hang-after=3s", script, tells, ranks=3)

    def seen(command: str) -> dict[str, Any]:
        found: dict[str, Any] = distlaunch(command, run, "--output", "json").json["result"]
        return found

    def shown() -> list[Any]:
        return [(each["kind"], each["rank"], each["node"]) for each in seen("status")["findings"]]

    wait_until("the hang", shown, limit_s=LIMIT_S)
    assert shown() == [("hang", 2, 0)]
    now = seen("top")
    assert now["ranks"][0]["rank"] == 2
    assert "rank 2" in now["ranks"][0]["odd"]
    assert "is in apart (gates.py:10" in now["ranks"][0]["odd"]
    assert seen("status")["progress"]["eta_s"] is None
    assert "odd      " in distlaunch("status", run).stdout
    assert f'distlaunch_run_hangs{{run="{run}"}} 1' in distlaunch("metrics", run).stdout

    for gate in gates:
        gate.open("w").close()
    wait_until("the end of the hang", lambda: not shown(), limit_s=LIMIT_S)
    assert seen("top")["findings"] == []
    stream = distlaunch.runs / run / "nodes/0/stream"
    wait_until("whole samples that say so", lambda: '"hang":null' in stream.read_text(), limit_s=LIMIT_S)
    assert f'distlaunch_run_hangs{{run="{run}"}} 0' in distlaunch("metrics", run).stdout


def test_a_hang_is_shown_however_much_has_been_written_before_and_since(
    distlaunch: Cli, start: Callable[..., str]
) -> None:
    gates = [distlaunch.directory / f"gate{rank}" for rank in range(3)]
    for gate in gates:
        os.mkfifo(gate)
    much = 'print(("x" * 999 + "\\n") * (12 << 10), end="", flush=True)\n'
    script = str(distlaunch.write("gates.py", SCRIPT.replace("time.sleep(2)\n", f"time.sleep(2)\n{much}", 1)))
    run = start("--nproc-per-node=3", "--samples=1", "--hang-after=3s", script, "line", ranks=3)
    stream = distlaunch.runs / run / "nodes/0/stream"
    assert stream.stat().st_size > LONG_BYTES

    def shown() -> list[Any]:
        found = distlaunch("status", run, "--output", "json").json["result"]
        return [(each["kind"], each["rank"], each["node"]) for each in found["findings"]]

    wait_until("the hang", shown, limit_s=LIMIT_S)
    with stream.open("ab") as file:  # as it is an hour later
        file.write(encode_event("heartbeat", 0, workers=3) * 5000)

    wait_until("the hang, in what followed", shown, limit_s=LIMIT_S)
    assert shown() == [("hang", 2, 0)]
    assert f'distlaunch_run_hangs{{run="{run}"}} 1' in distlaunch("metrics", run).stdout
    (row,) = distlaunch("top", "--output", "json").json["result"]["runs"]
    assert [each["kind"] for each in row["findings"]] == ["hang"]

    for gate in gates:
        gate.open("w").close()
    wait_until("the end of the hang", lambda: not shown(), limit_s=LIMIT_S)
    assert f'distlaunch_run_hangs{{run="{run}"}} 0' in distlaunch("metrics", run).stdout


def test_a_hang_that_a_former_agent_reports_outlasts_its_whole_samples() -> None:
    """Only agents that repeat it there take it back there."""
    rates: Any = dict.fromkeys(
        ("cpu", "cpus", "memory_bytes", "memory_total_bytes", "received", "sent", "rdma_received", "rdma_sent")
    )
    later = NodeSample(time=2.0, node=0, attempt=0, gpus=(), ranks=(), **rates)
    told = {"time": 1.0, "message": "no progress", "odd": [], "silent_s": 9.0}
    events: dict[str, dict[str, Any]] = {
        "hang": told,
        "whole": {"whole": True},
        "repeated": {"whole": True, "hang": told},
        "over": {"whole": True, "hang": None},
    }

    def left(*names: str) -> int:
        hanging = Hanging()
        for name in names:
            hanging.add(0, Event("hang" if name == "hang" else "sample", events[name]))
        watched: Watched = {"progress": None, "findings": []}
        return len(hanging.added_to(watched, {0: [later]}, ["here"])["findings"])

    assert [left("hang", "whole"), left("hang", "repeated")] == [1, 1]
    assert [left("hang", "over"), left("hang", "repeated", "over"), left("hang", "over", "hang")] == [0, 0, 1]
