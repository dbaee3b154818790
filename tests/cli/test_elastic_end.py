"""Elastic runs that lose nodes whose part is done: the run goes on, and succeeds."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.protocol import encode_event
from launcher.backends._base import Chunk
from launcher.runs.liveness import Liveness
from launcher.service import limits
from testbed import wait_until
from tests.cli.following import (
    agents,
    end,
    nothing_is_left,  # noqa: F401 - a fixture
    recorded,
    until,
)
from tests.cli.scripted import Scripted, followed, started

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

SCRIPT = """
import os, sys, time
print("up", flush=True)
while os.environ["GROUP_RANK"] == "0" and not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""
"""The workers of node 0 wait for a file, those of the others succeed at once."""

NODE_1: list[tuple[str, dict[str, Any]]] = [
    ("rendezvous", {"ranks": [1]}),
    ("worker_started", {"rank": 1, "local_rank": 0}),
    ("worker_exited", {"rank": 1, "local_rank": 0, "round": 0, "exit_code": 0}),
]
LOST = {"class": "killed", "message": "killed", "host": "h1", "node": 1, "rank": None, "time": 5.0, "secondary": False}


def test_an_elastic_run_succeeds_though_nodes_are_lost_that_have_finished(distlaunch: Cli) -> None:
    """Fewer nodes are left then than the run needs."""
    script, go = distlaunch.write("waits.py", SCRIPT), distlaunch.directory / "go"
    command = ("local", "--nodes", "2:3", "--nproc-per-node", "1", "--log-ranks", "all", str(script), str(go))
    with distlaunch.start(*command) as run:
        for _ in range(3):
            until(run, b"up")
        streams = [path for node in (1, 2) for path in distlaunch.runs.glob(f"*/nodes/{node}/stream")]
        wait_until("both to finish", lambda: all(b'"worker_exited"' in path.read_bytes() for path in streams))
        time.sleep(1.0)  # they are counted a moment later
        for agent in agents(distlaunch)[1:]:
            os.kill(agent.pid, signal.SIGKILL)
        wait_until("the losses", lambda: all(b'"failure"' in path.read_bytes() for path in streams))
        go.touch()
        code, told = end(run)

    assert code == 0, told
    assert (recorded(distlaunch)["state"], recorded(distlaunch)["cause"]) == ("success", None)
    assert [node["result"] for node in recorded(distlaunch)["nodes"]] == ["success", None, None]


class Goes(Scripted):
    """Node 1's agent has exited. Node 0 works on, for longer than the launcher waits for it."""

    def liveness(self, handle: object) -> Liveness:
        self.answered += 1
        if self.answered == 40 or (self.cancels and not self.over.is_set()):
            result = "cancelled" if self.cancels else "success"
            mine = encode_event("worker_exited", 0, rank=0, local_rank=0, round=0, exit_code=0)
            self.chunks.append(Chunk(0, mine + encode_event("done", 0, result=result)))
            self.over.set()
        return Liveness(nodes=("ended" if self.over.is_set() else "running", "ended"))


@pytest.mark.parametrize("told", [[], [("failure", {"cause": LOST})]], ids=["gone", "its loss is known"])
@pytest.mark.parametrize(("finished", "state"), [(True, "success"), (False, "failed")])
def test_an_elastic_run_is_ended_for_a_lost_node_only_if_that_had_not_finished(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    told: list[tuple[str, dict[str, Any]]],
    finished: bool,
    state: str,
) -> None:
    """The run has no node to spare: as many are known as it needs."""
    for name, seconds in (("UNAWARE_S", 0.02), ("HANG_S", 0.02), ("SETTLE_S", 0.02), ("POLL_S", (0.02, 0.02))):
        monkeypatch.setattr(limits, name, seconds)
    events = [*(NODE_1 if finished else NODE_1[:-1]), *told]
    lines = [encode_event(name, 1, **fields) for name, fields in events]
    met = encode_event("rendezvous", 0, ranks=[0])
    backend = Goes(started(0), started(1), Chunk(0, met), *(Chunk(1, line) for line in lines))

    _, outcome = followed(backend, tmp_path, nodes_asked_for="2:4")

    assert (bool(backend.cancels), outcome.state) == (not finished, state)
