"""A detached run over SSH, watched from here: its samples are in the stream like everything else."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.terminal.screen import Screen

if TYPE_CHECKING:
    from typing import Any

    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh

STEPS = """\
import os, time
step = 0
while not os.path.exists("{go}"):
    step += 1
    print(f"::distlaunch progress step={{step}}/1000 loss=0.5", flush=True)
    time.sleep(0.2)
"""


def test_a_detached_run_has_its_hosts_ranks_and_steps_as_a_table_and_on_a_terminal(rack: Rack) -> None:
    go = rack.cli.directory / "go"
    rack.write("steps.py", STEPS.format(go=go))
    run = rack.detached("--nodes", "2", "--nproc-per-node", "2", "--samples", "1", "steps.py")

    def table() -> Any:
        return rack.shell("top", run, "--output", "json").json["result"]

    limit = time.monotonic() + 120
    while not (len((found := table())["ranks"]) == 4 and all(rank["step"] for rank in found["ranks"])):
        assert time.monotonic() < limit, found
    assert [node["host"] for node in found["nodes"]] == [host.name for host in rack.ssh.hosts[:2]]
    assert all(node["memory_bytes"] for node in found["nodes"])

    argv = [sys.executable, "-m", "launcher", "top", run]
    with Screen(argv, env=rack.cli.env({"TERM": "xterm"}), cwd=rack.directory, size=(20, 100)) as screen:
        screen.until("/1000")
        screen.until("LINES/S")
        screen.type("q")
        assert screen.end() == 0
    go.touch()
    assert rack.shell("wait", run).exit_code == 0
    assert rack.state(run)["progress"]["steps"] == 1000
