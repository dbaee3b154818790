"""`distlaunch move` between two clusters that are both this machine: what it refuses, and what it records."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

import distlaunch as api
from launcher.errors import CommandError
from launcher.runs import directories
from launcher.runs.records import Run
from launcher.service import cancel, carrying, observe
from launcher.service.live_report import LiveReport
from testbed import wait_until
from tests.moving import STEPS, went_on

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

CLUSTERS = """
[clusters.a]
backend = "local"
[clusters.b]
backend = "local"
nproc_per_node = 2
[clusters.wide]
backend = "local"
nodes = 2
[clusters.many]
backend = "slurm"
array = "0-3"
"""


@pytest.fixture
def run(distlaunch: Cli) -> str:
    """A run on `a` that has made some steps."""
    distlaunch.write("system.toml", CLUSTERS)
    distlaunch.write("steps.py", STEPS)
    started = distlaunch("run", "--on", "a", "--env", "A=b", "--detach", "steps.py", "60")
    assert started.exit_code == 0, started.stderr
    name = started.stdout.strip()
    wait_until("steps", lambda: "step 3\n" in distlaunch("logs", name).stdout)
    return name


@pytest.mark.slow
def test_a_run_goes_on_elsewhere_under_its_id_as_its_next_attempt(distlaunch: Cli, run: str) -> None:
    moved = distlaunch("move", run, "--to", "b", "--carry", "out/*", "--output", "json")
    assert moved.exit_code == 0, moved.stderr
    assert moved.json["result"] == {"run": run, "cluster": "b", "attempt": 1}

    assert distlaunch("wait", run).exit_code == 0
    went_on(distlaunch("logs", run).stdout, 60, 2)
    state = distlaunch("status", run, "--output", "json").json["result"]
    assert (state["state"], state["attempt"], state["cluster"]) == ("success", 1, "b")
    assert state["nodes"][0]["ranks"] == [0, 1], "as the settings of `b` say"
    former, now = state["race"]["tries"]
    assert (former["cluster"], former["run"], now["cluster"]) == ("a", run, "b")
    assert former["granted_at"] < former["cancelled_at"] <= now["granted_at"]
    assert "until it was moved away" in distlaunch("status", run).stdout
    assert [row["run"] for row in distlaunch("ls", "--output", "json").json["result"]["runs"]] == [run]

    again = distlaunch("requeue", run)
    assert (again.exit_code, again.stdout) == (0, f"{run}: attempt 2\n"), again.stderr
    assert distlaunch("wait", run).exit_code == 0
    assert distlaunch("rm", run).exit_code == 0
    assert list(distlaunch.runs.iterdir()) == []


def test_a_run_moves_as_often_as_wanted_also_after_it_was_cancelled(distlaunch: Cli, run: str) -> None:
    for number, to in enumerate(("b", "a"), start=1):
        moved = distlaunch("move", run, "--to", to, "--carry", "out/state-*")
        assert moved.stdout == f"{run}: attempt {number} on {to}\n", moved.stderr
        _begun(distlaunch, run, number + 1)
    assert distlaunch("cancel", run).exit_code == 0
    again = distlaunch("move", run, "--to", "b")

    assert again.exit_code == 0, again.stderr
    assert distlaunch("wait", run).exit_code == 0
    went_on(distlaunch("logs", run).stdout, 60, 4)
    late = distlaunch("move", run, "--to", "a")
    assert (late.exit_code, f"{run} has succeeded" in late.stderr) == (2, True)


def test_lines_of_a_node_that_the_new_cluster_does_not_have_are_still_there(distlaunch: Cli) -> None:
    distlaunch.write("system.toml", CLUSTERS)
    distlaunch.write("steps.py", STEPS)
    name = distlaunch("run", "--on", "wide", "--detach", "steps.py", "600").stdout.strip()
    wait_until("steps", lambda: distlaunch("logs", name).stdout.count("step 3\n") == 2)
    moved = distlaunch("move", name, "--to", "a")
    assert moved.exit_code == 0, moved.stderr
    _begun(distlaunch, name, 2)
    live = LiveReport(directories.read(distlaunch.runs, name)).read()
    assert distlaunch("cancel", name).exit_code == 0

    with (distlaunch.runs / name / "nodes" / "0" / "stream").open("a") as stream:
        stream.write("[0:0] cut o")
    whole, one, other = (distlaunch("logs", name, *words) for words in ((), ("--node", "1"), ("--node", "2")))
    assert "[1:1] step 3\n" in whole.stdout
    assert "[0:0] cut o\n" in whole.stdout
    assert {line[:5] for line in one.stdout.splitlines()} == {"[1:1]"}, one.stderr
    assert (other.exit_code, "has no node 2\n  hint: nodes: 0 to 1" in other.stderr) == (2, True), other.stderr

    for report in (live, json.loads(distlaunch("report", "--format", "json", name).stdout)):
        (rank,) = (each for each in report["logs"] if each["node"] == 1)
        assert "step 3" in [line["text"] for line in rank["lines"]]
    run = api.get(name, runs_dir=distlaunch.runs)
    assert "step 3" in [line.text for line in run.logs(node=1)]
    assert {each.node for each in run.events() if isinstance(each, api.NodeEvent)} == {0, 1}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--to", "c"), "unknown cluster 'c'"),
        (("--to", "b", "--node", "1"), "has no node '1'"),
        (("--to", "many"), "many: its settings make a job array of it"),
        ((), "--to"),
    ],
)
def test_what_cannot_be_moved_goes_on_where_it_is(
    distlaunch: Cli, run: str, words: tuple[str, ...], error: str
) -> None:
    refused = distlaunch("move", run, *words)

    assert (refused.exit_code, error in refused.stderr) == (2, True), refused.stderr
    assert distlaunch("status", run, "--output", "json").json["result"]["state"] == "running"
    assert distlaunch("cancel", run, "--force").exit_code == 0


def test_a_run_of_another_directory_and_one_without_its_request_are_refused(distlaunch: Cli, run: str) -> None:
    elsewhere = distlaunch.directory / "elsewhere"
    elsewhere.mkdir()
    there = distlaunch("move", run, "--to", "b", cwd=elsewhere)
    record = distlaunch.runs / run / "run.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "given": {}}))
    unknown = distlaunch("move", run, "--to", "b")

    assert (there.exit_code, f"hint: cd {distlaunch.directory}" in there.stderr) == (2, True), there.stderr
    assert (unknown.exit_code, "does not record how it was launched" in unknown.stderr) == (2, True)
    assert distlaunch("cancel", run, "--force").exit_code == 0


def test_files_that_are_not_there_leave_a_run_that_can_be_started_again(distlaunch: Cli, run: str) -> None:
    refused = distlaunch("move", run, "--to", "b", "--carry", "nowhere/*")

    assert refused.exit_code == 2
    assert "nothing matches 'nowhere/*'" in refused.stderr
    assert f"distlaunch requeue {run} continues where it was" in refused.stderr
    assert distlaunch("requeue", run).exit_code == 0
    assert distlaunch("wait", run).exit_code == 0
    went_on(distlaunch("logs", run).stdout, 60, 2)


def test_of_two_moves_at_once_one_is_refused_and_takes_nothing_from_the_other(distlaunch: Cli, run: str) -> None:
    words = ("move", run, "--to", "b", "--carry", "out/*")
    moves = [distlaunch.start(*words), distlaunch.start(*words)]
    said = [process.communicate(timeout=120)[1].decode() for process in moves]

    assert sorted(process.returncode for process in moves) == [0, 2], said
    assert any("`distlaunch move`, process" in text for text in said)
    assert distlaunch("wait", run).exit_code == 0
    went_on(distlaunch("logs", run).stdout, 60, 2)


def test_a_run_that_cannot_be_stopped_is_an_error_not_a_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its agents, whose ends are waited for, then never end."""
    asleep = threading.Event()
    outputs = SimpleNamespace(hold=lambda: None, await_end=asleep.wait, close=asleep.set)
    backend = SimpleNamespace(loses_outputs=True, has_outputs=True, open_outputs=lambda *_: outputs, name="k8s")
    backend.sees_outputs = lambda: False
    monkeypatch.setattr(observe, "backend_of", lambda _: backend)
    monkeypatch.setattr(cancel, "cancel", Mock(side_effect=CommandError("you may not delete jobs")))
    handle: Any = {"hosts": ["n1"]}
    run = Run(id="a-20250101-120000-abcd", path=tmp_path, backend="k8s", handle=handle)
    state: Any = {"exit_code": None, "nodes": [{"started": 1.0}]}

    with pytest.raises(CommandError, match="you may not delete jobs"):
        carrying.stopped(run, state, ("out/*",), "0", tmp_path / "carried")

    assert asleep.is_set(), "and the connection is closed"


def _begun(distlaunch: Cli, run: str, times: int) -> None:
    wait_until("an attempt", lambda: distlaunch("logs", run).stdout.count("[0:0] begins") == times)
