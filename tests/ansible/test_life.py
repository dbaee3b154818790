"""What happens to launchers, connections and hosts while a run goes on."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.ansible.conftest import is_sshd, make
from tests.ansible.test_run import WAITS
from tests.testbed import fixtures, wait_until

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack
    from tests.command import Cli
    from tests.testbed import Host

pytestmark = pytest.mark.ssh

COUNTS = """
import sys, time
for n in range(int(sys.argv[1])):
    print("line", n, flush=True)
    time.sleep(0.01)
"""

AGAIN = """
import os, time
attempt = os.environ.get("DISTLAUNCH_ATTEMPT", "0")
print("attempt", attempt, "on", os.uname().nodename, *([] if attempt != "0" else ["waits"]), flush=True)
time.sleep(0 if attempt != "0" else 1000)
"""

FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        time.sleep(1000)
    os._exit(0)
print("ready", flush=True)
time.sleep(1000)
"""


def ssh_sessions(host: Host) -> list[int]:
    """The processes of sshd that serve connections."""
    return [process.pid for process in host.processes() if re.match(r"sshd: (?!/)", process.command())]


def test_a_run_outlives_its_launcher_and_another_shell_sees_all_of_it(rack: Rack) -> None:
    rack.write("counts.py", COUNTS)
    launcher = rack.start("--nodes", "2", "--name", "outlives", "counts.py", "1000")
    wait_until(
        "the run",
        lambda: [path for path in rack.cli.runs.glob("outlives*/nodes/1/stream") if b"line" in path.read_bytes()],
        limit_s=90,
    )
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.communicate()
    run = next(rack.cli.runs.glob("outlives*")).name

    followed = rack.cli("logs", "-f", "--rank", "1", run, timeout_s=120)

    assert [int(line.split()[1]) for line in followed.stdout.splitlines()] == list(range(1000))
    assert rack.wait_for(run, "success")["exit_code"] == 0
    lines = rack.cli("logs", run).stdout.splitlines()
    assert sorted(lines) == sorted(f"[{node}:{node}] line {n}" for node in (0, 1) for n in range(1000))


def test_no_line_is_lost_or_doubled_when_connections_break_and_two_follow(rack: Rack) -> None:
    rack.write("counts.py", COUNTS)
    host = rack.ssh.hosts[1]
    first = rack.start("--nodes", "2", "--log-ranks", "all", "counts.py", "1500")
    wait_until("the run", lambda: list(rack.cli.runs.glob("counts*/nodes/1/stream")), limit_s=90)
    run = next(rack.cli.runs.glob("counts*")).name
    rack.wait_line(run, "[1:1] line 50")
    second = rack.cli.start("logs", "-f", run)
    for pid in ssh_sessions(host):
        os.kill(pid, signal.SIGKILL)
    wait_until("a new connection", lambda: ssh_sessions(host), limit_s=60)
    host.cut_off()
    time.sleep(2)  # long enough that lines have to wait
    host.reconnect()

    for process in (first, second):
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
        assert sorted(stdout.decode().splitlines()) == sorted(f"[{node}:{node}] line {n}" for node in (0, 1) for n in range(1500))


def test_all_that_workers_have_started_ends_with_the_run_and_another_run_stays(rack: Rack) -> None:
    rack.write("family.py", FAMILY)
    rack.write("waits.py", WAITS)
    other = rack.detached("--nodes", "2", "waits.py")
    run = rack.detached("--nodes", "2", "--grace", "1s", "family.py")
    rack.wait_line(run, "ready", count=2)
    rack.wait_line(other, "ready", count=2)

    cancelled = rack.cli("cancel", run, timeout_s=120)

    assert cancelled.exit_code == 0, cancelled.stderr
    left = rack.left()
    assert not [command for command in left if run in command or "family" in command or "sleep(1000)" in command], left
    assert rack.state(other)["state"] == "running"
    assert rack.cli("cancel", "--force", other, timeout_s=120).exit_code == 0


def test_ctrl_c_cancels_and_detached_runs_are_cancelled_from_elsewhere(rack: Rack) -> None:
    rack.write("waits.py", WAITS)
    launcher = rack.start("--nodes", "2", "--log-ranks", "all", "waits.py")
    wait_until(
        "the run", lambda: [p for p in rack.cli.runs.glob("waits*/nodes/1/stream") if b"ready" in p.read_bytes()], limit_s=90
    )

    os.kill(launcher.pid, signal.SIGINT)

    stdout, stderr = launcher.communicate(timeout=90)
    assert launcher.returncode == 130, stderr
    assert stdout.count(b"saving with time left") == 2


def test_a_host_that_is_cut_off_is_told_apart_from_a_script_that_fails_and_a_spare_takes_its_place(distlaunch: Cli) -> None:
    with fixtures.make(3, ssh=True) as testbed:
        rack = make(distlaunch, testbed.ssh)
        rack.write("again.py", AGAIN)
        options = ("--nodes", "2", "--spares", "1", "--max-restarts", "1", "--log-ranks", "all")
        launcher = rack.start(*options, "again.py")
        streams = "again*/nodes/1/stream"
        wait_until("the run", lambda: [p for p in rack.cli.runs.glob(streams) if b"waits" in p.read_bytes()], limit_s=90)

        rack.ssh.hosts[1].cut_off()

        stdout, stderr = launcher.communicate(timeout=240)
        assert launcher.returncode == 0, stderr
        assert b"the script failed" not in stderr
        assert b"left out: n2" in stderr
        lines = stdout.decode().splitlines()
        assert sorted(lines) == [
            "[0:0] attempt 0 on n1 waits",
            "[0:0] attempt 1 on n1",
            "[1:1] attempt 0 on n2 waits",
            "[1:1] attempt 1 on n3",
        ]
        run = next(rack.cli.runs.glob("again*")).name
        assert sorted(rack.cli("logs", run).stdout.splitlines()) == sorted(lines)
        assert rack.state(run)["nodes"][1]["host"] == "n3"
        rack.ssh.hosts[1].reconnect()


def test_a_host_whose_sshd_stops_goes_on_and_is_followed_again(rack_of_two: Rack) -> None:
    rack = rack_of_two
    host = rack.ssh.hosts[1]
    rack.write("counts.py", COUNTS)
    launcher = rack.start("--log-ranks", "1", "counts.py", "2000")
    wait_until(
        "the run", lambda: [p for p in rack.cli.runs.glob("counts*/nodes/1/stream") if b"line 9" in p.read_bytes()], limit_s=90
    )

    for process in host.processes():
        if is_sshd(process.command()):
            process.send(signal.SIGKILL)
    run = next(rack.cli.runs.glob("counts*")).name
    wait_until("the connection to be missed", lambda: "n2" in str(rack.state(run).get("detail")), limit_s=60)
    rack.ssh.start_sshd(host)

    stdout, stderr = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, stderr
    assert stdout.decode().splitlines() == [f"line {n}" for n in range(2000)]
