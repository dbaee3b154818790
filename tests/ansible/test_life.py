"""What happens to launchers, connections and hosts while a run goes on."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from testbed import wait_until
from testbed.processes import Process
from tests.ansible.conftest import SUM, WAITS, is_sshd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from testbed import Host
    from testbed.running import Running
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
from launcher.backends.ansible import backend, stream
from launcher.cli import main
stream._SILENT_S, backend._LOST_S = (10.0, 160.0), 30.0
whole = spec.JobSpec.job
spec.JobSpec.job = lambda self, **more: whole(self, **more)._replace(host_timeout_s=7.0)
sys.exit(main())
"""
"""The command line, with less patience for hosts that are silent.

Still so much that a sound host is not given up whose next word (after 4 s at the latest), or login, takes its time.
"""

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

    # Nobody answers there any more: that is said, and the run continues.
    sshd = [process for process in host.processes() if is_sshd(process.command())]
    for process in sshd:
        process.send(signal.SIGKILL)
    try:
        gates[2].open()
        last = f"line {4 * EACH - 1}\n"
        wait_until("lines to be written everywhere", lambda: all(last in path.read_text() for path in written), limit_s=60)
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
    """What runs of FAMILY on these hosts."""
    kinds = {"worker": r"family\.py", "child": "family-child", "agent": rf"/{run}/nodes/"}
    commands = [process.command() for process in rack.left(*hosts)]
    return Counter(kind for command in commands for kind, words in kinds.items() if re.search(words, command))


def test_runs_at_once_do_not_meet_and_each_ends_with_all_that_it_has_started_wherever_it_is_cancelled(rack: Rack) -> None:
    rack.write("family.py", FAMILY)
    rack.write("waits.py", WAITS)
    rack.write("sum.py", SUM)
    first = rack.detached("waits.py")
    other = rack.start("--log-ranks", "all", "sum.py")
    run = rack.detached("--nodes", "2", "--grace", "1s", "family.py")
    rack.logs(first).until("ready", count=4)
    rack.logs(run).until("ready", count=2)
    for host in rack.ssh.hosts[:2]:
        assert family(rack, run, host) == {"agent": 1, "worker": 2, "child": 1}

    running = rack.shell("requeue", run)
    cancelled = rack.shell("cancel", run)

    assert (running.exit_code, "its agents still run" in running.stderr) == (2, True), running.stderr
    assert cancelled.exit_code == 0, cancelled.stderr
    assert not {"worker", "child"} & set(family(rack, run))
    wait_until("its agents, which have said their last word, to end", lambda: family(rack, run) == {})
    assert rack.state(run)["state"] == "cancelled"
    assert other.end() == 0, other
    said = sorted(line.partition(" ")[2] for line in other.stdout.splitlines())
    assert said == [f"rank {rank}/4 on n{rank + 1}: sum 10" for rank in range(4)]

    # The first one goes on; a machine that has not started it finds it and cancels it.
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
    again = rack.shell("requeue", first, env=elsewhere)
    assert (again.exit_code, "it was started from another machine" in again.stderr) == (3, True), again.stderr
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


def test_force_kills_at_once_also_on_agents_that_hear_all_signals_at_one_moment(rack: Rack) -> None:
    rack.write("deaf.py", "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)\n")
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


def test_ctrl_c_while_a_host_does_not_answer_starts_nothing_and_leaves_no_ansible(rack: Rack) -> None:
    """At once, however long the host may take."""
    slow = rack.cli.write("slow-python", "#!/bin/sh\nexec cat 3>&1 >/dev/null\n")
    slow.chmod(0o755)
    rack.write("waits.py", WAITS)
    launcher = rack.start("--nodes", "1", "--host-timeout", "3600", "--python", str(slow), "waits.py")
    wait_until("n1 to be asked", lambda: "cat" in [process.command() for process in rack.left()], limit_s=90)

    launcher.kill(signal.SIGINT)

    assert launcher.end() == 130, launcher
    assert "stopping; once more to leave at once" in launcher.stderr
    run = rack.id_of("waits")
    assert rack.state(run)["state"] == "cancelled"
    wait_until("Ansible to be gone", lambda: not [command for command in commands_here() if run in command], limit_s=60)
    assert not list(rack.remote.rglob("started.json"))
    rack.wait_nothing_left()


STANDS_STILL = """
import fcntl, os, sys
def hook(event, args):
    if event == "os.fork":
        open({reached!r}, "w").close()
        fcntl.flock(open({gate!r}), fcntl.LOCK_SH)
sys.addaudithook(hook)
"""
"""Python on a host that is about to start its agent, and waits before it does."""


@contextlib.contextmanager
def half_started(rack: Rack) -> Iterator[Running]:
    """A launcher that has started n1's agent, while n2 is about to start its own: that goes on at the end."""
    rack.write("waits.py", WAITS)
    gate, reached = rack.cli.directory / "gate", rack.cli.directory / "reached"
    rack.cli.write("site/sitecustomize.py", STANDS_STILL.format(reached=str(reached), gate=str(gate)))
    slow = rack.cli.write("slow-python", f'#!/bin/sh\nPYTHONPATH={rack.cli.directory}/site exec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    hosts = f"n1 distlaunch_python={sys.executable}\nn2 distlaunch_python={slow}\n"
    with open(gate, "w") as held:  # once it is closed, whoever waits there goes on, and whoever comes later
        fcntl.flock(held, fcntl.LOCK_EX)
        launcher = rack.open(*rack.argv("--nodes", "2", "waits.py", inventory=rack.inventory(hosts), python=None))
        wait_until("n2 to be about to start its agent", reached.exists, limit_s=90)
        yield launcher


def test_what_a_launcher_has_started_that_was_killed_is_ended_by_cancel_and_what_was_about_to_start_does_not(rack: Rack) -> None:
    with half_started(rack) as launcher:
        launcher.kill()
        assert launcher.end() == -signal.SIGKILL
        run = rack.id_of("waits")
        state = rack.state(run)
        cancelled = rack.shell("cancel", "--force", run)

    assert state["exit_code"] is None
    assert state["detail"].startswith("its launcher ended while it submitted the run"), state
    assert (cancelled.exit_code, cancelled.stdout) == (0, f"{run}: cancelled\n"), cancelled.stderr
    rack.wait_nothing_left()


def test_of_a_launcher_that_was_stopped_while_a_host_was_cut_off_the_run_is_ended_by_cancel(rack: Rack) -> None:
    host = rack.ssh.hosts[0]
    with half_started(rack) as launcher:
        host.cut_off()
        try:
            launcher.kill(signal.SIGINT)
            code = launcher.end()
        finally:
            host.reconnect()
        run = rack.id_of("waits")
        result = rack.cli.runs / run / "result.json"
        ended, state = result.exists(), rack.state(run)
        cancelled = rack.shell("cancel", "--force", run)

    assert code == 130, launcher
    assert "what was started may still run there: n1: " in launcher.stderr, launcher
    assert not ended
    assert state["exit_code"] is None
    assert state["detail"].startswith("its submission went wrong, and what is there may lack nodes: n1: "), state
    assert (cancelled.exit_code, cancelled.stdout) == (0, f"{run}: cancelled\n"), cancelled.stderr
    rack.wait_nothing_left()


def commands_here() -> list[str]:
    """The command line of all that runs on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            found.append(path.read_text(errors="replace"))
    return found


def test_a_host_that_is_cut_off_before_the_nodes_have_met_is_named(rack: Rack) -> None:
    """By the launcher, where node 0 does not miss it yet, or never knew it: the others would wait for ten minutes."""
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
def test_a_host_that_is_cut_off_is_told_apart_from_a_script_that_fails_and_a_spare_takes_its_place(rack: Rack) -> None:
    """Whichever it is: first that of node 1, then that of node 0, where the others have met."""
    rack.write("again.py", AGAIN)
    options = ("--nodes", "2", "--spares", "2", "--max-restarts", "2", "--log-ranks", "all")
    launcher = rack.start(*options, "again.py", python=("-c", IMPATIENT), env={"ANSIBLE_TIMEOUT": "20"})
    try:
        for attempt, lost in enumerate((1, 0)):
            launcher.until(f" attempt {attempt} ", count=2)
            rack.ssh.hosts[lost].cut_off()
        ended = launcher.end()
    finally:
        for host in rack.ssh.hosts[:2]:
            host.reconnect()
    assert ended == 0, launcher
    assert "the script failed" not in launcher.stderr
    silent = re.findall(r"node (\d) has not answered for 7 s: its host or the network is gone", launcher.stderr)
    assert "1" in silent, "which is measured by TCP"
    assert [word in launcher.stderr for word in ("left out: n1", "left out: n2")] == [True, True]
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
    run = rack.id_of("again")
    assert sorted(rack.shell("logs", run).stdout.splitlines()) == said
    assert [node["host"] for node in rack.state(run)["nodes"]] == ["n3", "n4"]


def agent_pid(rack: Rack, run: str, node: int) -> int:
    """The agent's, once the process of its gang listens to the others."""

    def listening() -> int:
        pid = int(json.loads((rack.remote / "runs" / run / "nodes" / str(node) / "agent.json").read_text())["pid"])
        return pid if any(process.num_threads() > 2 for process in psutil.Process(pid).children(recursive=True)) else 0

    return wait_until(f"the agent of node {node}", lambda: suppressed(listening), limit_s=60)


def suppressed(found: Callable[[], int]) -> int:
    """0 as long as there is nothing."""
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        return found()
    return 0


@pytest.mark.parametrize("launcher", ["follows", "is gone"])
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
os.read(os.pipe()[0], 1)  # which nobody writes to
"""


def test_a_host_whose_disk_is_full_loses_lines_and_tells_how_the_run_ended_all_the_same(rack: Rack) -> None:
    second = rack.ssh.hosts[1]
    rack.private_disks(second, size_bytes=40_000_000)
    rack.write("floods.py", FLOODS)

    done = rack("--nodes", "2", "floods.py")
    state = rack.state(rack.id_of("floods"))

    assert done.exit_code == 1, done.stderr
    assert re.search(r"[\d,]+ lines( of rank 1)? were not kept: the disk of the run directory is full", done.stderr), done.stderr
    assert (state["cause"]["message"], state["cause"]["rank"]) == ("ValueError: in the end", 1)
    assert [node["lines_lost"] > 100 for node in state["nodes"]] == [False, True]
