"""Hosts that are cut off, agents that are killed, disks that are full while a run continues."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from testbed import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh

AGAIN = """
import os, signal
attempt = os.environ.get("DISTLAUNCH_ATTEMPT", "0")
why = os.environ.get("DISTLAUNCH_ATTEMPT_REASON", "waits")
print("attempt", attempt, "on", os.uname().nodename, why, flush=True)
if attempt != "2":
    signal.pause()
"""

IMPATIENT = """
import sys
from launcher import spec
from launcher.backends import _patience
from launcher.backends.ansible import lost
from launcher.cli import main
from launcher.service import limits
_patience._SILENT_S, lost._LOST_S, limits.HANG_S = (10.0, 160.0), 20.0, 10.0
whole = spec.JobSpec.job
spec.JobSpec.job = lambda self, **more: whole(self, **more)._replace(host_timeout_s=7.0)
sys.exit(main())
"""
"""The command line, with less patience for hosts that are silent.

Still enough that a sound host is not given up if its next message (due after 4 s at most) or login takes its time.
"""


def test_a_host_that_is_cut_off_before_the_nodes_have_met_is_named(rack: Rack) -> None:
    """By the launcher, as node 0 does not miss it yet, or never knew it: the others would wait for ten minutes."""
    os.mkfifo(rack.cli.directory / "go")
    rack.write("held.py", f"open({str(rack.cli.directory / 'go')!r}).read()\n")
    rack.write("x.py", "print('never')\n")
    patient_nodes = IMPATIENT.replace("host_timeout_s=7.0", "host_timeout_s=70.0")
    launcher = rack.start("--nodes", "2", "--preload", "held", "x.py", python=("-c", patient_nodes))
    wait_until("both to be followed", lambda: len(list(rack.cli.runs.glob("x-*/nodes/[01]/stream"))) == 2, limit_s=60)
    host = rack.ssh.hosts[1]
    host.cut_off()
    try:
        ended = launcher.end()
    finally:
        host.reconnect()
    assert ended == 1, launcher
    assert "a node failed: host n2 does not answer any more: " in launcher.stderr
    assert "first failure: host n2, node 1" in launcher.stderr


@pytest.mark.timeout(600)
def test_a_host_that_is_cut_off_is_distinguished_from_a_script_that_fails_and_a_spare_takes_its_place(
    rack: Rack,
) -> None:
    """Whichever host it is: first that of node 1, then that of node 0, where the others have met.

    The run does not end in between, for whoever else looks at it.
    """
    rack.write("again.py", AGAIN)
    options = ("--nodes", "2", "--spares", "2", "--max-restarts", "2", "--log-ranks", "all")
    launcher = rack.start(*options, "again.py", python=("-c", IMPATIENT), env={"ANSIBLE_TIMEOUT": "10"})
    try:
        for attempt, lost in enumerate((1, 0)):
            launcher.until(f" attempt {attempt} ", count=2)
            if not attempt:
                run = rack.id_of("again")
                others = [rack.open("wait", run), rack.open("logs", "--follow", run), rack.open("attach", run)]
                others[2].until("attempt 0 on n1")
            rack.ssh.hosts[lost].cut_off()
        ended = launcher.end()
        assert [other.end() for other in others] == [0, 0, 0], "\n".join(map(str, others))
    finally:
        for host in rack.ssh.hosts[:2]:
            host.reconnect()
    assert ended == 0, launcher
    assert "the script failed" not in launcher.stderr
    said_by_either = launcher.stderr + others[2].stderr
    assert [word in said_by_either for word in ("left out: n1", "left out: n2")] == [True, True], "by one of them"
    assert "started again, attempt 1" in launcher.stderr, "and not by a scheduler, as there is none"
    assert re.findall(r"^(n\d) +[01] +", launcher.stderr, re.MULTILINE) == ["n1", "n2", "n1", "n3", "n3", "n4"]
    said = sorted(launcher.stdout.splitlines())
    assert said == [
        "[0:0] attempt 0 on n1 waits",
        "[0:0] attempt 1 on n1 failed",
        "[0:0] attempt 2 on n3 failed",
        "[1:1] attempt 0 on n2 waits",
        "[1:1] attempt 1 on n3 failed",
        "[1:1] attempt 2 on n4 failed",
    ]
    assert sorted(others[1].stdout.splitlines()) == said
    measured = (rack.cli.runs / run / "nodes" / "0" / "stream").read_text()
    assert "node 1 has not answered for 7 s: its host or the network is lost" in measured, "by TCP"
    assert sorted(rack.shell("logs", run).stdout.splitlines()) == said
    assert [node["host"] for node in rack.state(run)["nodes"]] == ["n3", "n4"]


def agent_pid(rack: Rack, run: str, node: int) -> int:
    """The pid of a node's agent, once the process of its worker group listens."""

    def listening() -> int:
        pid = int(json.loads((rack.remote / "runs" / run / "nodes" / str(node) / "agent.json").read_text())["pid"])
        return pid if any(process.num_threads() > 2 for process in psutil.Process(pid).children(recursive=True)) else 0

    return wait_until(f"the agent of node {node}", lambda: suppressed(listening), limit_s=60)


def suppressed(found: Callable[[], int]) -> int:
    """0 while there is nothing."""
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        return found()
    return 0


@pytest.mark.parametrize("launcher", ["follows", "has exited"])
def test_an_agent_that_is_killed_before_the_rendezvous_is_named_and_its_peers_end(rack: Rack, launcher: str) -> None:
    rack.write("slow.py", "import time\ntime.sleep(600)\n")
    rack.write("never.py", "print('never')\n")
    options = ("--nodes", "3", "--preload", "slow", "--name", "killed")
    if launcher == "follows":
        terminal = rack.start(*options, "never.py")
        wait_until("the run", lambda: list(rack.cli.runs.glob("killed-2*")), limit_s=60)
        run = rack.id_of("killed")
    else:
        run = rack.detached(*options, "never.py")
    pids = [agent_pid(rack, run, node) for node in range(3)]

    os.kill(pids[1], signal.SIGKILL)

    if launcher == "follows":
        assert terminal.end() == 1
        assert f"a process was killed: the agent (pid {pids[1]}) was killed by SIGKILL" in terminal.stderr
        assert "first failure: host n2, node 1" in terminal.stderr
    wait_until("the run's end", lambda: rack.state(run)["exit_code"] is not None)
    cause = rack.state(run)["cause"]
    assert (cause["class"], cause["host"], cause["node"], cause["signal"]) == ("killed", "n2", 1, "SIGKILL")
    assert cause["may_come_back"] is True


FLOODS = """
import os, sys
if os.environ["RANK"] == "1":
    for _ in range(8000):
        print("x" * 10_000)
    sys.stdout.flush()
    raise ValueError("in the end")
print("ready", flush=True)
os.read(os.pipe()[0], 1)  # which is never written to
"""


def test_a_host_whose_disk_is_full_loses_lines_and_still_reports_how_the_run_ended(rack: Rack) -> None:
    second = rack.ssh.hosts[1]
    rack.private_disks(second, size_bytes=40_000_000)
    rack.write("floods.py", FLOODS)

    done = rack("--nodes", "2", "floods.py")
    state = rack.state(rack.id_of("floods"))

    assert done.exit_code == 1, done.stderr
    assert re.search(r"[\d,]+ lines( of rank 1)? were not kept: the disk of the run directory is full", done.stderr), (
        done.stderr
    )
    assert (state["cause"]["message"], state["cause"]["rank"]) == ("ValueError: in the end", 1)
    assert [node["lines_lost"] > 100 for node in state["nodes"]] == [False, True]


STAYS = """
import os
print("ready", flush=True)
os.read(os.pipe()[0], 1)  # which is never written to
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("why", ["failed", "cancelled"])
def test_a_detached_run_that_has_lost_a_host_ends_for_a_command_that_only_asks(rack: Rack, why: str) -> None:
    """At once if its other node says that the host is lost, or else when a command has waited for the host."""
    rack.write("stays.py", STAYS)
    impatient: dict[str, Any] = {"python": ("-c", IMPATIENT), "cwd": rack.directory}
    run = rack.cli(*rack.argv("--detach", "--nodes", "2", "stays.py"), **impatient).stdout.strip()
    streams = [rack.remote / "runs" / run / "nodes" / str(rank) / "stream" for rank in range(2)]
    wait_until("both nodes to work", lambda: all(b"ready" in path.read_bytes() for path in streams), limit_s=60)
    rack.ssh.hosts[1].cut_off()
    try:
        if why == "cancelled":
            rack.shell("cancel", "--no-wait", run, env={"ANSIBLE_TIMEOUT": "5"})
        wait_until("node 0 to end", lambda: b'{"event":"done"' in streams[0].read_bytes(), limit_s=90)
        if why == "cancelled":
            assert rack.cli("wait", run, **impatient).exit_code == 130
        else:
            state = rack.state(run)
            assert (state["state"], state["cause"]["node"]) == ("failed", 1)
    finally:
        rack.ssh.hosts[1].reconnect()
