"""The hosts of runs that a cluster reports, in a list."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from launcher.cli import main
from launcher.service import cluster

if TYPE_CHECKING:
    import pytest


def test_nodes_that_have_no_host_yet_are_left_out_of_the_table(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of 6 pods, the first and the third wait for a host."""
    hosts = ["", "sim-1", "", "sim-3", "sim-4", "sim-5"]
    run: dict[str, Any] = {"run": "r", "state": "running", "nodes": "6", "created": None, "user": "ada", "job_id": "r"}
    monkeypatch.setattr(cluster, "found", lambda _: [{**run, "hosts": hosts, "command": ["x.py"]}])
    monkeypatch.setattr(sys, "argv", ["distlaunch", "ls", "--on", "k8s"])

    assert main() == 0

    header, row = capfd.readouterr().out.splitlines()
    assert row[header.index("HOSTS") : header.index("AGE")].rstrip() == "sim-[1,3-5]"
