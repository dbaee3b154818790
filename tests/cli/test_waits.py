"""What is said while something is waited for, and what is wrong on many nodes: one line each."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from typing import TYPE_CHECKING

from launcher.agent.protocol import Event
from launcher.console.announce import Announcer
from launcher.console.worker_output import WorkerOutput
from testbed import wait_until
from tests.cli.following import until, until_stderr

if TYPE_CHECKING:
    import pytest

    from tests.command import Cli

HOSTS = [f"n{number}" for number in range(64)]
SLOW = "import pathlib, time\nwhile not pathlib.Path('go').exists():\n    time.sleep(0.05)\n"
STUBBORN = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, lambda *_: print("half of ", end="", flush=True))
print("ready", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.05)
print("a line")
"""
RESTARTED = """
import os, pathlib, signal, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    sys.exit()
if os.environ["RANK"] == "1":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pathlib.Path("deaf").touch()
while not pathlib.Path("go" if os.environ["RANK"] == "1" else "deaf").exists():
    time.sleep(0.05)
sys.exit(3)
"""


def test_on_a_pipe_a_phase_that_lasts_is_a_line(distlaunch: Cli) -> None:
    distlaunch.write("slow.py", SLOW)
    distlaunch.write("stubborn.py", STUBBORN)
    go = distlaunch.directory / "go"
    options = ("--nodes", "2", "--nproc-per-node", "1", "--preload", "slow")
    process = distlaunch.start("local", *options, "stubborn.py")

    until_stderr(process, b"importing torch on 2 of 2 nodes (5 s)")
    go.touch()

    until(process, b"ready")
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_who_attaches_later_reads_what_is_waited_for(distlaunch: Cli) -> None:
    distlaunch.write("slow.py", SLOW)
    distlaunch.write("steps.py", "")
    options = ("--nodes", "2", "--nproc-per-node", "1", "--preload", "slow")
    assert distlaunch("local", "--detach", *options, "steps.py").exit_code == 0
    have_reported(distlaunch, b"agent_started")
    with distlaunch.start("attach", "last") as process:
        try:
            until_stderr(process, b"importing torch on 2 of 2 nodes (5 s)")
        finally:
            distlaunch.write("go", "")
        process.communicate(timeout=60)

    assert process.returncode == 0


def test_who_attaches_later_reads_that_the_run_has_none_of_the_ranks(distlaunch: Cli) -> None:
    distlaunch.write("slow.py", SLOW)
    assert distlaunch("local", "--detach", "--nodes", "2", "--nproc-per-node", "1", "slow.py").exit_code == 0
    have_reported(distlaunch, b"worker_started")
    with distlaunch.start("attach", "--log-ranks", "9", "last") as process:
        try:
            until_stderr(process, b"warning: log-ranks 9: the run has 2 ranks, so no line of its workers is shown")
        finally:
            distlaunch.write("go", "")
        process.communicate(timeout=60)

    assert process.returncode == 0


def have_reported(distlaunch: Cli, event: bytes) -> None:
    """Wait for the event of both nodes."""
    (run,) = distlaunch.runs.iterdir()
    streams = [run / "nodes" / node / "stream" for node in "01"]
    wait_until(str(event), lambda: all(path.exists() and event in path.read_bytes() for path in streams))


def test_on_a_pipe_a_stop_that_lasts_is_a_line(distlaunch: Cli) -> None:
    distlaunch.write("stubborn.py", STUBBORN)
    process = distlaunch.start("local", "--grace", "60s", "stubborn.py", stderr=subprocess.STDOUT)

    until(process, b"ready")
    process.send_signal(signal.SIGTERM)
    shown = until(process, b"waiting for the node to end (5 s)")
    (distlaunch.directory / "go").touch()

    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"\nhalf of \nwaiting for the node to end (5 s)\n" in shown, "not in the worker's line"
    assert b"a line\n" in rest


def test_on_a_pipe_the_end_of_workers_before_a_restart_is_a_line(distlaunch: Cli) -> None:
    distlaunch.write("restarted.py", RESTARTED)
    options = ("--nodes", "2", "--nproc-per-node", "1", "--max-restarts", "1", "--grace", "60s")
    process = distlaunch.start("local", *options, "restarted.py")

    until_stderr(process, b"restarting (1 of 1): waiting up to 60 s for 1 worker to end (5 s)")
    (distlaunch.directory / "go").touch()

    process.communicate(timeout=60)
    assert process.returncode == 0


def test_more_workers_than_cpus_are_reported_once(distlaunch: Cli) -> None:
    cpus = len(os.sched_getaffinity(0))
    run = ("local", "-q", "--nodes", "2", "--no-python", "--nproc-per-node")

    done = distlaunch(*run, str(cpus + 1), "/bin/true")
    fitting = distlaunch(*run, str(cpus), "/bin/true")

    assert done.exit_code == fitting.exit_code == 0
    assert re.fullmatch(rf"warning: 2 nodes \(.+\): {cpus + 1} workers share {cpus} CPUs?\n", done.stderr)
    assert not fitting.stderr


def test_what_many_nodes_say_alike_is_one_line_with_their_names(capfd: pytest.CaptureFixture[str]) -> None:
    announcer = Announcer(HOSTS, WorkerOutput(frozenset()), more_cpus="--cpus-per-task")
    for node in range(64):
        announcer.record(node, Event("warning", {"message": "the disk is slow"}))
        if node != 7:
            announcer.record(node, Event("waiting", {"what": "node 7 to start", "limit_s": 600}))
    announcer.record(3, Event("warning", {"message": "only here"}))
    assert not capfd.readouterr().err, "others may report the same"

    announcer.tick(1e12)

    said = capfd.readouterr().err.splitlines()
    assert sorted(said) == [
        "63 nodes (n[0-6,8-63]) wait for node 7 to start for at most 600 s",
        "warning: 64 nodes (n[0-63]): the disk is slow",
        "warning: node 3 (n3): only here",
    ]
    announcer.tick(2e12)
    announcer.close()
    assert not capfd.readouterr().err, "once"


def test_a_node_whose_wait_is_over_is_not_named(capfd: pytest.CaptureFixture[str]) -> None:
    announcer = Announcer(HOSTS[:3], WorkerOutput(frozenset()), more_cpus="--cpus-per-task")
    for node in range(2):
        announcer.record(node, Event("waiting", {"what": "node 2 to start"}))
    announcer.record(0, Event("host_facts", {"cpus": 1}))
    announcer.record(0, Event("rendezvous", {"nodes": 3, "world_size": 24}))
    announcer.record(0, Event("worker_started", {"rank": 0, "local_rank": 0}))
    announcer.record(0, Event("worker_started", {"rank": 1, "local_rank": 1}))
    capfd.readouterr()

    announcer.tick(1e12)

    assert sorted(capfd.readouterr().err.splitlines()) == [
        "node 1 (n1) waits for node 2 to start",
        "warning: node 0 (n0): 8 workers share 1 CPU: --cpus-per-task gives them more",
    ]
