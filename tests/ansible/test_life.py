"""Launchers, followers and connections that end or break while a run continues."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from testbed.processes import Process
from tests.ansible.conftest import SUM, WAITS, is_sshd

if TYPE_CHECKING:
    from testbed import Host
    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh
EACH = 700

COUNTS = f"""
import os, sys
for part, gate in enumerate([*sys.argv[1:], None]):
    for n in range(part * {EACH}, (part + 1) * {EACH}):
        print("line", n, flush=True)
    if gate:
        open(f"{{gate}}.{{os.environ['RANK']}}", "rb", buffering=0).read(1)
"""
"""Lines by the hundred, and a gate after each lot but the last."""

FAMILY = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", "family-child"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pause()
    os._exit(0)
os.wait()
print("ready", flush=True)
signal.pause()
"""


def ssh_sessions(host: Host) -> list[int]:
    """The processes of sshd that serve connections."""
    return [process.pid for process in host.processes() if re.match(r"sshd: (?!/)", process.command())]


def lines(*nodes: int, parts: int) -> list[str]:
    """What COUNTS prints, as `logs` shows it."""
    return sorted(f"[{node}:{node}] line {n}" for node in nodes for n in range(parts * EACH))


def test_a_run_outlives_its_launcher_and_another_shell_sees_all_of_it(rack: Rack) -> None:
    rack.write("counts.py", COUNTS)
    gate = rack.gate("gate", 0, 1)
    launcher = rack.start("--nodes", "2", "--name", "outlives", "--log-ranks", "all", "counts.py", str(gate))
    launcher.until(f"line {EACH - 1}\n", count=2)
    launcher.kill()
    assert launcher.end() == -signal.SIGKILL
    run = rack.id_of("outlives")
    gate.open()

    followed = rack.open("logs", "-f", "--rank", "1", run)

    assert followed.end() == 0, followed
    assert followed.stdout.splitlines() == [f"line {n}" for n in range(2 * EACH)]
    ended = rack.state(run)
    assert (ended["state"], ended["exit_code"]) == ("success", 0)
    assert sorted(rack.shell("logs", run).stdout.splitlines()) == lines(0, 1, parts=2)


def calls(*hosts: Host) -> list[str]:
    """The commands by which launchers are answered there."""
    commands = [process.command() for host in hosts for process in host.processes()]
    return [
        command for command in commands if re.search(r"python\S* (-S |-u )?-c import sys;(sys\.path|print)", command)
    ]


def test_the_connection_that_starts_an_agent_carries_its_stream_to_the_launcher_that_follows(rack: Rack) -> None:
    rack.write("waits.py", WAITS)
    launcher = rack.start("--nodes", "2", "--log-ranks", "all", "waits.py")
    for rank in (0, 1):
        launcher.until(f"[{rank}:{rank}] ready\n")
    while_followed = calls(*rack.ssh.hosts[:2])
    launcher.kill()
    launcher.end()
    wait_until("the hosts to be left alone", lambda: not calls(*rack.ssh.hosts[:2]))
    followed = rack.logs(rack.id_of("waits"))
    wait_until("another launcher to ask both", lambda: len(calls(*rack.ssh.hosts[:2])) == 2)
    by_another = calls(*rack.ssh.hosts[:2])

    assert rack.shell("cancel", rack.id_of("waits")).exit_code == 0
    followed.end()
    assert followed.stdout.count("saving with time left") == 2
    assert [" -S " in command for command in while_followed] == [False, False]
    assert [" -S " in command for command in by_another] == [True, True]


def test_a_run_that_is_not_followed_keeps_no_connection(rack: Rack) -> None:
    rack.write("waits.py", WAITS)
    done = rack.shell(*rack.argv("--nodes", "2", "--detach", "waits.py"))
    assert done.exit_code == 0, done.stderr
    wait_until("the hosts to be left alone", lambda: not calls(*rack.ssh.hosts[:2]))
    assert rack.shell("cancel", done.stdout.strip()).exit_code == 0


def test_no_line_is_lost_or_doubled_when_connections_break_cables_are_pulled_and_sshd_stops(rack: Rack) -> None:
    rack.write("counts.py", COUNTS)
    host = rack.ssh.hosts[1]
    gates = [rack.gate(f"gate{number}", 0, 1) for number in range(4)]
    first = rack.start("--nodes", "2", "--log-ranks", "all", "counts.py", *map(str, gates))
    first.until("[1:1] line 0\n")
    run = rack.id_of("counts")
    second = rack.logs(run)
    written = [rack.remote / "runs" / run / f"nodes/{node}/stream" for node in (0, 1)]

    # Connections break while lines come, and both open new ones.
    second.until(f"[1:1] line {EACH - 1}\n")
    gates[0].open()
    for pid in ssh_sessions(host):
        os.kill(pid, signal.SIGKILL)
    for follower in (first, second):
        follower.until(f"[1:1] line {2 * EACH - 1}\n")

    # The cable is out while lines are written there, which have to wait.
    host.cut_off()
    gates[1].open()
    wait_until("lines to be written there", lambda: f"line {3 * EACH - 1}\n" in written[1].read_text(), limit_s=60)
    host.reconnect()
    for follower in (first, second):
        follower.until(f"[1:1] line {3 * EACH - 1}\n")

    # Nothing answers there any more: that is reported, and the run continues.
    sshd = [process for process in host.processes() if is_sshd(process.command())]
    for process in sshd:
        process.send(signal.SIGKILL)
    try:
        gates[2].open()
        last = f"line {4 * EACH - 1}\n"
        wait_until(
            "lines to be written everywhere", lambda: all(last in path.read_text() for path in written), limit_s=60
        )
        seen = rack.state(run)
        shown = rack.shell("logs", run)
    finally:
        rack.ssh.start_sshd(host)
    assert seen["exit_code"] is None, seen
    assert seen["detail"].startswith("no connection to n2: "), seen
    assert re.search("no connection to n2: .*; this is what came before", shown.stderr)
    assert set(shown.stdout.splitlines()) >= set(lines(0, parts=4)) | set(lines(1, parts=3))
    gates[3].open()

    for follower in (first, second):
        assert follower.end() == 0, follower
        assert sorted(follower.stdout.splitlines()) == lines(0, 1, parts=5)


def family(rack: Rack, run: str, *hosts: Host) -> Counter[str]:
    """The processes of FAMILY on these hosts, by kind."""
    kinds = {"worker": r"family\.py", "child": "family-child", "agent": rf"/{run}/nodes/"}
    commands = [process.command() for process in rack.left(*hosts)]
    return Counter(kind for command in commands for kind, words in kinds.items() if re.search(words, command))


def test_runs_at_once_do_not_meet_and_each_ends_with_all_that_it_has_started_wherever_it_is_cancelled(
    rack: Rack,
) -> None:
    rack.write("family.py", FAMILY)
    rack.write("waits.py", WAITS)
    rack.write("sum.py", SUM)
    token: dict[str, str | None] = {"TOKEN": "s3cr3t"}
    first = rack("--detach", "--secret", "TOKEN", "waits.py", env=token).stdout.strip()
    other = rack.start("--share", "--log-ranks", "all", "sum.py")
    run = rack.detached("--share", "--nodes", "2", "--grace", "1s", "family.py")
    rack.logs(first).until("ready", count=4)
    rack.logs(run).until("ready", count=2)
    for host in rack.ssh.hosts[:2]:
        assert family(rack, run, host) == {"agent": 1, "worker": 2, "child": 1}

    running = rack.shell("requeue", run)
    cancelled = rack.shell("cancel", run)

    assert (running.exit_code, "its agents still run" in running.stderr) == (2, True), running.stderr
    assert cancelled.exit_code == 0, cancelled.stderr
    assert not {"worker", "child"} & set(family(rack, run))
    wait_until("its agents, which have sent their last message, to exit", lambda: family(rack, run) == {})
    assert rack.state(run)["state"] == "cancelled"
    assert other.end() == 0, other
    said = sorted(line.partition(" ")[2] for line in other.stdout.splitlines())
    assert said == [f"rank {rank}/4 on n{rank + 1}: sum 10" for rank in range(4)]

    # The first one continues; a shell that has not started it finds it and cancels it.
    elsewhere: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(rack.cli.directory / "elsewhere")}
    hosts = ("--inventory", str(rack.ssh.inventory), "--remote-dir", str(rack.remote))
    adopted = rack.shell("adopt", "waits", *hosts, env=elsewhere)
    assert adopted.exit_code == 0, adopted.stderr
    assert adopted.stdout.strip() == first
    state = rack.shell("status", first, "--output", "json", env=elsewhere).json["result"]
    assert state["state"] == "running"
    assert [node["host"] for node in state["nodes"]] == ["n1", "n2", "n3", "n4"]
    cancelled = rack.shell("cancel", first, env=elsewhere)
    assert cancelled.exit_code == 0, cancelled.stderr
    assert rack.shell("logs", first, env=elsewhere).stdout.count("saving with time left") == 4
    assert rack.state(first)["state"] == "cancelled"
    without = rack.shell("requeue", first, env=elsewhere)
    assert (without.exit_code, "secret TOKEN: not set" in without.stderr) == (2, True), without.stderr
    for host in rack.ssh.hosts:  # after two weeks
        host.run(("sh", "-c", f"rm -rf {rack.remote}/snapshots/*"), check=True)
    again = rack.shell("requeue", first, env={**elsewhere, **token})
    assert (again.exit_code, again.stdout) == (0, f"{first}: attempt 1\n"), again.stderr
    rack.open("logs", "-f", first, env=elsewhere).until("ready TOKEN", count=8)
    assert rack.shell("cancel", first, env=elsewhere).exit_code == 0
    unknown = rack.shell("adopt", "nothing", *hosts, env=elsewhere)
    assert "no run 'nothing' on n1, n2, n3, n4" in unknown.stderr
    assert unknown.exit_code == 2


def test_ctrl_c_gives_all_workers_time_to_save_and_cancels_the_run(rack: Rack) -> None:
    rack.write("waits.py", WAITS)
    inventory = rack.inventory("".join(f"{host.name} distlaunch_python=/nowhere\n" for host in rack.ssh.hosts[:2]))
    launcher = rack.start("--log-ranks", "all", "waits.py", inventory=inventory)  # --python is for all hosts
    launcher.until("ready", count=2)

    launcher.kill(signal.SIGINT)

    assert launcher.end() == 130, launcher
    assert launcher.stdout.count("saving with time left") == 2
    rack.wait_nothing_left()
    assert rack.state(rack.id_of("waits"))["state"] == "cancelled"


def test_force_kills_at_once_even_if_agents_receive_all_signals_at_the_same_time(rack: Rack) -> None:
    rack.write(
        "deaf.py",
        "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)\n",
    )
    run = rack.detached("--nodes", "2", "--grace", "300s", "deaf.py")
    logs = rack.logs(run)
    logs.until("ready", count=2)
    started = [json.loads(path.read_text()) for path in rack.remote.glob(f"runs/{run}/nodes/*/started.json")]
    agents = [Process(about["pid"], about["start_ticks"]) for about in started]
    for agent in agents:
        agent.send(signal.SIGSTOP)  # signals that wait are one

    asked = rack.shell("cancel", "--force", "--no-wait", run)
    for agent in agents:
        agent.send(signal.SIGCONT)  # where it has not been killed

    assert len(agents) == 2
    assert (asked.exit_code, asked.stdout) == (0, f"{run}: stopping\n"), asked.stderr
    logs.end()
    ended = rack.shell("cancel", run)
    assert (ended.exit_code, ended.stdout) == (0, f"{run}: cancelled\n"), ended.stderr
