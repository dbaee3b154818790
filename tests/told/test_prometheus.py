"""A real Prometheus scrapes what `metrics` writes, and answers every query of the dashboard."""

from __future__ import annotations

import functools
import http.server
import json
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from testbed import NotAvailableError, packages, wait_until
from tests.agent.test_nvml import UUIDS, Gpus, libraries  # noqa: F401 - a fixture
from tests.command import ROOT, Cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DASHBOARD = json.loads((ROOT / "docs/grafana/distlaunch.json").read_text())
STEPS = """
import os, time
step = 0
while not os.path.exists("go"):
    step += 1
    print(f"::distlaunch progress step={step}/100000 loss={1 / step}", flush=True)
    time.sleep(0.1)
"""
WITHOUT = {"distlaunch_node_rdma_received_bytes_per_second", "distlaunch_node_rdma_sent_bytes_per_second"}
"""What this machine has not."""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a directory, as node_exporter serves that of its textfile collector."""

    def guess_type(self, path: Any) -> str:
        """The text format that the collector reads."""
        return "text/plain; version=0.0.4"

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@dataclass
class Prometheus:
    """It runs on the loopback address."""

    address: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The values of an expression now."""
        url = f"http://{self.address}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(url, timeout=10) as answer:
            told = json.load(answer)
        assert told["status"] == "success", told
        found: list[dict[str, Any]] = told["data"]["result"]
        return found

    def ready(self) -> bool:
        """Whether it has scraped twice."""
        try:
            rate = self.query("rate(distlaunch_rank_lines_total[5m])")
        except (urllib.error.URLError, ConnectionError):
            return False
        return bool(rate)


@pytest.fixture
def directory(distlaunch: Cli) -> Iterator[tuple[str, Path]]:
    """A directory that is served, and its address."""
    path = distlaunch.directory / "textfile"
    path.mkdir()
    handler = functools.partial(Quiet, directory=str(path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_port}", path
        server.shutdown()
        thread.join()


@pytest.fixture
def prometheus(distlaunch: Cli, directory: tuple[str, Path]) -> Iterator[Prometheus]:
    """Debian's, which scrapes the directory's file each second."""
    try:
        packages.require(packages.MONITORING)
    except NotAvailableError as error:
        pytest.skip(str(error))
    job = f"""
global: {{scrape_interval: 1s}}
scrape_configs:
- job_name: distlaunch
  metrics_path: /distlaunch.prom
  static_configs: [{{targets: ["{directory[0]}"]}}]
"""
    config = distlaunch.write("prometheus.yml", job)
    log = (distlaunch.directory / "prometheus.log").open("wb")
    argv = [str(packages.program("prometheus")), "--config.file", str(config), "--web.listen-address=127.0.0.1:0"]
    argv += ["--storage.tsdb.path", str(distlaunch.directory / "tsdb")]
    with log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        try:
            yield Prometheus(wait_until("its address", lambda: address(distlaunch.directory / "prometheus.log")))
        finally:
            process.terminate()


def address(log: Path) -> str:
    """Where it listens, as it logs it."""
    lines = [line for line in log.read_text().splitlines() if 'msg="Listening on"' in line]
    return lines[0].rpartition("address=")[2] if lines else ""


def queries() -> dict[str, str]:
    """The dashboard's, by panel."""
    return {
        f"{panel['title']} {number}": target["expr"]
        for panel in DASHBOARD["panels"]
        for number, target in enumerate(panel.get("targets", ()))
    }


def test_every_query_of_the_dashboard_has_the_values_of_the_run_that_is_chosen(
    distlaunch: Cli,
    directory: tuple[str, Path],
    prometheus: Prometheus,
    libraries: dict[str, Path],  # noqa: F811
) -> None:
    gpus = Gpus(distlaunch, libraries["new"])
    gpus.are((UUIDS[0], 90, 1024, 81920, 300_400), (UUIDS[1], 10, 512, 81920, 80_000))
    distlaunch.write("steps.py", STEPS)
    how = ("--detach", "--samples", "1", "--nproc-per-node", "2")
    runs = [distlaunch("local", *how, "steps.py", env=gpus.env(), real=True).stdout.strip() for _ in range(2)]
    write = ("metrics", "-o", str(directory[1] / "distlaunch.prom"))
    try:
        wait_until(
            "two scrapes with samples", lambda: distlaunch(*write).exit_code == 0 and prometheus.ready(), limit_s=120
        )
        names = {found["metric"]["run"] for found in prometheus.query("distlaunch_run_info")}
        asked = {panel: text.replace("$run", runs[0]) for panel, text in queries().items()}
        answers = {panel: prometheus.query(text) for panel, text in asked.items()}
        every = {panel: prometheus.query(text.replace("$run", ".*")) for panel, text in queries().items()}
    finally:
        distlaunch.write("go", "")
        distlaunch("wait", *runs)

    assert names == set(runs), "the dashboard's list of runs"
    empty = {panel for panel, found in answers.items() if not found}
    assert empty == {panel for panel, text in asked.items() if any(name in text for name in WITHOUT)}
    for panel, found in answers.items():
        assert {one["metric"]["run"] for one in found} <= {runs[0]}, panel
        assert len(every[panel]) == 2 * len(found), panel
    assert {float(one["value"][1]) for one in answers["GPU use 0"]} == {0.9, 0.1}
    (state,) = answers["State 0"]
    assert (state["metric"]["state"], state["value"][1]) == ("running", "1")
