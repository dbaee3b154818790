"""`distlaunch metrics`: read by Prometheus' own parsers; and the dashboard that queries them."""

from __future__ import annotations

import json
import re
import stat
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as new_parser

from launcher.agent.protocol import encode_event
from launcher.runs import status
from launcher.runs.metrics import COUNTERS, FAMILIES, Page
from launcher.service.metrics import page
from testbed import wait_until
from tests.command import ROOT, Cli
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

openmetrics: Any = new_parser.text_string_to_metric_families
older: Any = parser.text_string_to_metric_families

STEPS = """
import os, time
for step in range(1, 1000):
    print(f"::distlaunch progress step={step}/1000 loss={1 / step}", flush=True)
    time.sleep(0.1)
    if os.path.exists("go"):
        break
"""


@pytest.fixture
def running(distlaunch: Cli) -> Iterator[str]:
    """A run that tells its progress."""
    distlaunch.write("steps.py", STEPS)
    how = ("--samples", "1", "--nproc-per-node", "2", "--name", "steps")
    yield distlaunch("local", "--detach", *how, "steps.py").stdout.strip()
    distlaunch.write("go", "")
    distlaunch("wait", "last")


def values(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in openmetrics(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_a_running_run_is_read_by_prometheus_parsers(distlaunch: Cli, running: str) -> None:
    def sampled() -> str:
        text = distlaunch("metrics", running).stdout
        return text if "distlaunch_rank_step{" in text and "distlaunch_run_steps{" in text else ""

    text = wait_until("samples", sampled)
    found = values(text)

    assert found["distlaunch_run_info"] == [
        ({"run": running, "backend": "local", "cluster": "", "name": "steps", "job_id": ""}, 1.0)
    ]
    assert [labels["state"] for labels, value in found["distlaunch_run_state"] if value] == ["running"]
    assert [labels["phase"] for labels, _ in found["distlaunch_run_startup_seconds"]] == [
        "agent", "import", "rendezvous", "workers",
    ]  # fmt: skip
    assert found["distlaunch_run_steps"][0][1] == 1000
    assert {labels["rank"] for labels, _ in found["distlaunch_rank_cpu_busy"]} == {"0", "1"}
    assert found["distlaunch_node_workers"][0][1] == 2
    assert all(value > 0 for _, value in found["distlaunch_rank_lines_total"])
    assert {sample.name for family in older(text) for sample in family.samples} == set(found)


LOUD = """
import os, pathlib, time
for number in range(300):
    print(str(number) * 500, flush=True)
assert os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"
pathlib.Path("said").touch()
while not os.path.exists("go"):
    time.sleep(0.01)
"""


def test_a_restart_counts_also_once_the_run_has_written_much(distlaunch: Cli) -> None:
    distlaunch.write("loud.py", LOUD)
    how = ("--max-restarts", "1", "--nproc-per-node", "1")
    run = distlaunch("local", "--detach", *how, "loud.py").stdout.strip()
    wait_until("its output", (distlaunch.directory / "said").exists)

    status = distlaunch("status", run, "--output", "json").json["result"]
    found = values(distlaunch("metrics", run).stdout)
    distlaunch.write("go", "")
    distlaunch("wait", run)

    assert (status["restarts"], status["usage"]["restarts"]) == (1, 1)
    assert [value for _, value in found["distlaunch_run_restarts_total"]] == [1.0]


def test_no_counter_falls_when_streams_become_too_long_to_be_read_whole(tmp_path: Path) -> None:
    run = make(tmp_path, "train-20250101-000000-abcd", result=None)
    stream = run.stream_path(0)
    stream.parent.mkdir(parents=True)
    first = (("agent_started", 10), ("worker_started", 11), ("restart", 20), ("worker_started", 25))
    second = (("agent_started", 40), ("worker_started", 41))
    last = encode_event("heartbeat", 0, time=90, attempt=1)
    lines = b"[0:0] a line that is one of many\n" * (1 << 19)

    def told(*parts: bytes) -> dict[str, list[tuple[dict[str, str], float]]]:
        stream.write_bytes(b"".join(parts))
        return values(page([(run, status.observe(run).to_json())]).text())

    began = b"".join(encode_event(name, 0, time=time) for name, time in first)
    later = b"".join(encode_event(name, 0, time=time, attempt=1) for name, time in second)
    short, long = told(began, later, last), told(began, lines, later, lines, last)

    stream.unlink()
    assert [short[f"distlaunch_run_{name}_seconds_total"][0][1] for name in ("held", "lost")] == [65.0, 21.0]
    fallen = [name for name in short if name.endswith("_total") and name in long and long[name] < short[name]]
    assert fallen == []


def test_the_file_is_whole_and_readable_for_all_and_has_all_recent_runs(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    runs = [distlaunch("local", "--output", "json", "x.py").json["result"]["run"] for _ in range(2)]
    path = distlaunch.directory / "textfile/distlaunch.prom"
    path.parent.mkdir()

    done = distlaunch("metrics", "-o", str(path))

    assert done.exit_code == 0, done.stderr
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    found = values(path.read_text())
    assert [labels["run"] for labels, _ in found["distlaunch_run_info"]] == runs
    assert {value for _, value in found["distlaunch_run_exit_code"]} == {0.0}
    assert "distlaunch_rank_cpu_busy" not in found


def test_without_runs_there_is_an_empty_page(distlaunch: Cli) -> None:
    assert distlaunch("metrics").stdout == "# EOF\n"


def test_a_file_that_cannot_be_written_is_an_error(distlaunch: Cli) -> None:
    done = distlaunch("metrics", "-o", "nowhere/x.prom")

    assert done.exit_code != 0
    assert "cannot write" in done.stderr
    assert "nowhere/x.prom" in done.stderr


def test_any_text_is_a_label() -> None:
    page, text = Page(), 'a"b\\c\nd\ud800ü'
    page.add("run_info", 1, run=text)
    page.add("run_loss", float("nan"), run="x")

    (family,) = openmetrics(page.text())

    assert family.samples[0].labels == {"run": text.replace("\ud800", "?")}


def dashboard() -> dict[str, object]:
    found: dict[str, object] = json.loads((ROOT / "docs/grafana/distlaunch.json").read_text())
    return found


def test_the_dashboard_queries_metrics_that_there_are() -> None:
    names = {f"distlaunch_{name}" + "_total" * (name in COUNTERS) for name in FAMILIES}

    asked = set(re.findall(r"distlaunch_\w+", json.dumps(dashboard())))

    assert asked <= names
    assert len(asked) > 20


def test_the_dashboards_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    panels = dashboard()["panels"]
    assert isinstance(panels, list)
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
