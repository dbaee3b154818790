"""A run whose nodes are there on two Slurm clusters at the same moment: exactly one runs the script."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from testbed import packages, wait_until
from testbed.bastion import script
from tests.slurm.laptop import LIMIT_S
from tests.slurm.test_races import MARKS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.slurm.racing import Racing

pytestmark = pytest.mark.slurm

CLUSTERS = ("juno", "lab")
NODES = 2
APART_S = 0.1
ROUNDS = 8


@pytest.fixture
def gate(racing: Racing) -> Path:
    """Nodes of both clusters start their agents once this file exists; they can reach juno's login node by ssh."""
    racing.cli.write("marks.py", MARKS)
    gate, ready, client = racing.home / "gate", racing.home / "ready", racing.home / "of-nodes"
    ready.mkdir()
    client.mkdir()
    python = client / "python"
    script(
        python, f': >"$(mktemp {ready}/XXXXXX)"; until [ -e {gate} ]; do sleep 0.005; done; exec {sys.executable} "$@"'
    )
    way = f"nsenter --net=/run/netns/{racing.node.host.netns}"  # hosts of the two clusters have no way to each other
    script(client / "ssh", f'exec {way} {packages.program("ssh")} -F {racing.node.config} "$@"')
    mine: dict[str, Any] = {"nodes": str(NODES), "python": str(python), "setup": [f"export PATH={client}:$PATH"]}
    racing.clusters(juno=mine, lab=mine)
    return gate


def started_at(racing: Racing, run: str) -> list[float]:
    """When node 0 of each try was there, by its own clock: the clusters share this machine's."""
    found = []
    for path in (racing.cli.runs / run / "tries").iterdir():
        streams = [racing.home / cluster / "runs" / path.name / "nodes/0/stream" for cluster in CLUSTERS]
        (stream,) = [stream for stream in streams if stream.exists()]
        first = stream.read_text().splitlines()[0].partition("{")
        found.append(float(json.loads("".join(first[1:]))["time"]))
    return found


@pytest.mark.parametrize("place", ["", "ssh://juno/"], ids=["launcher", "ssh"])
def test_two_clusters_that_start_it_in_the_same_moment_run_it_once(racing: Racing, gate: Path, place: str) -> None:
    """By the launcher's decision, or by a file at a place that all nodes reach by ssh; again until it was close."""
    marks, claims = racing.home / "marks", racing.home / "claims"
    how = ("--claim", f"{place}{str(claims).lstrip('/')}", "--detach") if place else ()
    for number in range(1, ROUNDS + 1):
        launcher = racing.race(*how, "marks.py", str(marks), "0")
        wait_until(
            "all nodes to be there", lambda: len(list((racing.home / "ready").iterdir())) == 2 * NODES, limit_s=LIMIT_S
        )
        gate.touch()
        out, said = launcher.communicate(timeout=2 * LIMIT_S)
        state = racing.wait_end()
        wait_until("no job to be left", lambda: racing.queued() == [], limit_s=60)

        assert launcher.returncode == 0, said.decode()
        assert (state["state"], state["exit_code"]) == ("success", 0)
        assert place or out.decode() == f"rank 0 of {NODES}\n"
        assert len(marks.read_text().splitlines()) == number
        (ran,) = marks.read_text().splitlines()[-1:]
        assert ran in [each["run"] for each in state["race"]["tries"] if each["granted_at"]]
        if place:
            assert (claims / state["run"]).read_text() == ran
        first, second = started_at(racing, state["run"])
        if abs(first - second) < APART_S:
            return
        gate.unlink()
        for path in (racing.home / "ready").iterdir():
            path.unlink()
    pytest.fail(f"in {ROUNDS} rounds, the two were never there within {APART_S} s")
