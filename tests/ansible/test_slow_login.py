"""A host whose login takes longer than others have for a whole answer, as after `module load` in .bashrc."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.backends import _patience
from launcher.backends.ansible import ssh, stream
from tests.ansible.conftest import WAITS, results

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.ansible.conftest import Rack

pytestmark = [pytest.mark.ssh, pytest.mark.slow]

LOGIN_S = max(ssh._CALL_S, stream.FETCH_S, _patience._SILENT_S[0]) + 3
"""Of a login."""


@pytest.fixture
def slow(rack: Rack, request: pytest.FixtureRequest) -> Iterator[Rack]:
    """A rack in which the logins to n1 take long, or as long as the parameter says."""
    file = rack.cli.write("slow/.bashrc", f"sleep {getattr(request, 'param', LOGIN_S)}\n")
    host, there = rack.ssh.hosts[0], Path.home() / ".bashrc"
    there.touch()  # to be mounted over
    host.run(("mount", "--bind", str(file), str(there)), check=True, cwd="/")
    yield rack
    host.run(("umount", str(there)), check=True, cwd="/")


@pytest.mark.timeout(600)
def test_commands_have_the_time_that_the_hosts_logins_take(slow: Rack) -> None:
    slow.write("waits.py", WAITS)
    run = slow.detached("--nodes", "1", "waits.py")

    status, requeue = results(slow.open("status", run, "--output", "json"), slow.open("requeue", run))

    assert status.json["result"]["state"] == "running", status.stderr
    assert (requeue.exit_code, "its agents still run" in requeue.stderr) == (2, True), requeue.stderr
    cancelled = slow.shell("cancel", run)
    assert cancelled.exit_code == 0, cancelled.stderr


@pytest.mark.timeout(600)
def test_commands_have_the_time_that_the_hosts_python_takes_to_start(rack: Rack) -> None:
    """Even a login that takes none, as with the Python on a busy network disk."""
    python = rack.cli.write("python", f'#!/bin/sh\nsleep {LOGIN_S}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    rack.write("waits.py", WAITS)
    run = rack.detached("--nodes", "1", "--python", str(python), "waits.py")

    status = rack.state(run)
    cancelled = rack.shell("cancel", run)

    assert status["state"] == "running", status["detail"]
    assert cancelled.exit_code == 0, cancelled.stderr


@pytest.mark.parametrize("slow", [2], indirect=True)
def test_setup_lines_are_no_part_of_a_login(slow: Rack) -> None:
    """Commands later on run without them, and a host that is lost would hold all others up for as long."""
    slow.write("ends.py", "")
    setup_s = 20
    run = slow.detached("--nodes", "1", "--setup", f"sleep {setup_s}", "ends.py")

    (node,) = json.loads((slow.cli.runs / run / "run.json").read_text())["handle"]["nodes"]
    assert 2 <= node["login_s"] < setup_s
