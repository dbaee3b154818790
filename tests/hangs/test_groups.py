"""The watchdog in runs whose nodes change, that are started again, and that have roles."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest

from testbed import wait_until

if TYPE_CHECKING:
    from tests.command import Cli

LIMIT_S = 120
SCRIPT = """
import os, sys, threading, time

def meet():
    threading.Event().wait(3600)

def asleep():
    time.sleep(3600)

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
print("ready", world, flush=True)
while world == 2 and sys.argv[1] == "when alone":
    time.sleep(0.2)
    print("goes on", flush=True)
while sys.argv[1] == "until" and not os.path.exists("again"):
    time.sleep(0.5)
if sys.argv[1] == "until" or (sys.argv[1] == "once" and os.path.exists("again")):
    sys.exit()
if sys.argv[1] == "tells" and rank == 0:
    time.sleep(15)
    os.mkdir("over")
    sys.exit()
while sys.argv[1] == "tells":
    time.sleep(1)
    print("lives", flush=True)
    if os.path.exists("over"):
        sys.exit()
if sys.argv[1] == "once" and rank == 0:
    time.sleep(2)
    os.mkdir("again")
(asleep if rank == world - 1 and sys.argv[1] != "never" else meet)()
"""
WATCHED = ("--hang-after", "3s", "--grace", "2s", "--output", "json")


def events(distlaunch: Cli, name: str, node: int = 0) -> list[dict[str, Any]]:
    """Those of the only run, of one node."""
    (stream,) = distlaunch.runs.glob(f"*/nodes/{node}/stream")
    lines = [json.loads(line) for line in stream.read_text().splitlines() if line.startswith('{"event"')]
    return [each for each in lines if each["event"] == name]


@pytest.mark.torch
def test_an_elastic_run_that_hangs_ends_with_the_odd_rank_as_its_cause(distlaunch: Cli) -> None:
    script = str(distlaunch.write("odd.py", SCRIPT))

    run = distlaunch("local", "--nodes", "1:2", "--nproc-per-node", "2", "--on-hang", "end", *WATCHED, script, "always")

    cause = run.json["result"]["cause"]
    assert (cause["class"], cause["rank"]) == ("no_progress", 3), cause
    assert "rank 3 " in cause["message"]
    assert "is in time.sleep() (odd.py:8); ranks 0, 1, 2 are in" in cause["message"]


@pytest.mark.torch
def test_an_elastic_run_that_hangs_is_started_again(distlaunch: Cli) -> None:
    script = str(distlaunch.write("odd.py", SCRIPT))
    words = ("--nodes", "1:2", "--nproc-per-node", "1", "--on-hang", "restart", "--max-restarts", "1")

    run = distlaunch("local", *words, *WATCHED, script, "once")

    assert run.exit_code == 0, run.stderr
    assert run.json["result"]["restarts"] == 1
    assert [(event["action"], event["odd"]) for event in events(distlaunch, "hang")] == [("restart", [])]


@pytest.mark.torch
def test_the_nodes_that_are_left_of_an_elastic_run_are_watched(distlaunch: Cli) -> None:
    script = str(distlaunch.write("odd.py", SCRIPT))
    words = ("--nodes", "1:2", "--nproc-per-node", "1", "--on-hang", "warn", "--max-restarts", "3")
    run = distlaunch("local", "--detach", *words, *WATCHED, script, "when alone").json["result"]["run"]
    try:
        wait_until("both nodes", lambda: events(distlaunch, "first_line"), limit_s=LIMIT_S)
        agent = json.loads((distlaunch.runs / run / "nodes/1/agent.json").read_text())["pid"]
        os.kill(agent, signal.SIGKILL)

        wait_until("the watchdog's report", lambda: events(distlaunch, "hang"), limit_s=LIMIT_S)
    finally:
        distlaunch("cancel", "--force", run)

    (event,) = events(distlaunch, "hang")
    assert re.fullmatch(r"rank 0 \(\S+\) is in time\.sleep\(\) \(odd\.py:8\)", event["message"]), event["message"]


@pytest.mark.slow
def test_a_run_that_hangs_again_is_started_again_until_none_are_left(distlaunch: Cli) -> None:
    script = str(distlaunch.write("odd.py", SCRIPT))
    words = ("--nodes", "2", "--nproc-per-node", "2", "--on-hang", "restart", "--max-restarts", "2")

    run = distlaunch("local", *words, *WATCHED, script, "always")

    assert run.exit_code == 1
    cause = run.json["result"]["cause"]
    assert (cause["class"], cause["rank"], run.json["result"]["restarts"]) == ("no_progress", 3, 2)
    assert [event["odd"] for event in events(distlaunch, "hang")] == [[3]] * 3


ROLES = """
[roles.first]
script = "odd.py"
args = ["{first}"]
nodes = 1
nproc_per_node = 2

[roles.second]
script = "odd.py"
args = ["{second}"]
nodes = 1
nproc_per_node = 3
on_failure = "restart_role"
max_restarts = 1
"""


def test_a_role_that_hangs_ends_the_run_with_its_rank_as_the_cause(distlaunch: Cli) -> None:
    distlaunch.write("odd.py", SCRIPT)
    roles = str(distlaunch.write("run.toml", ROLES.format(first="never", second="always")))

    run = distlaunch("local", "--on-hang", "end", *WATCHED, f"--roles={roles}")

    cause = run.json["result"]["cause"]
    assert (cause["class"], cause["rank"]) == ("no_progress", 4), cause


def test_only_the_role_that_hangs_is_started_again(distlaunch: Cli) -> None:
    distlaunch.write("odd.py", SCRIPT)
    roles = str(distlaunch.write("run.toml", ROLES.format(first="until", second="once")))

    run = distlaunch("local", "--on-hang", "restart", *WATCHED, f"--roles={roles}")

    assert run.exit_code == 0, run.stderr
    assert [(event["action"], event["odd"]) for event in events(distlaunch, "hang")] == [("restart", [4])]
    assert [event["round"] for event in events(distlaunch, "rendezvous", 0)] == [0]
    assert [event["round"] for event in events(distlaunch, "rendezvous", 1)] == [0, 1]


TURNS = """
import os, sys

def turn(number):
    open(f"gate{number}").read()

print("ready", flush=True)
if os.environ["RANK"] == "0":
    turn(0)
turn(1)
print("goes on", flush=True)
turn(2)
"""


def test_a_second_hang_is_reported_also_if_only_other_nodes_wrote_in_between(distlaunch: Cli) -> None:
    gates = [distlaunch.directory / f"gate{number}" for number in range(3)]
    for gate in gates:
        os.mkfifo(gate)
    script = str(distlaunch.write("turns.py", TURNS))
    words = ("--detach", "--samples=1", "--nodes", "2", "--nproc-per-node", "1")
    run = distlaunch("local", *words, *WATCHED, script).json["result"]["run"]
    try:
        wait_until("the first hang", lambda: events(distlaunch, "hang"), limit_s=LIMIT_S)
        gates[1].open("w").close()

        wait_until("the second hang", lambda: len(events(distlaunch, "hang")) == 2, limit_s=LIMIT_S)
    finally:
        distlaunch("cancel", "--force", run)

    first, second = events(distlaunch, "hang")
    assert second["silent_s"] < second["time"] - first["time"]


COMPUTES = """
import os, sys, time
print("ready", flush=True)
began = time.monotonic()
if sys.argv[1] == "always":
    while not os.path.exists("over"):
        time.sleep(0.1)
else:
    while time.monotonic() - began < 10: sum(range(10_000_000))
    open("over", "w").close()
"""


def test_a_role_that_computes_is_no_hang_though_another_one_is_idle(distlaunch: Cli) -> None:
    distlaunch.write("odd.py", COMPUTES)
    alone = ROLES.format(first="never", second="always").replace("node = 3", "node = 1")
    roles = str(distlaunch.write("run.toml", alone))

    run = distlaunch("local", "--on-hang", "end", *WATCHED, f"--roles={roles}")

    assert run.exit_code == 0, run.stderr
    assert events(distlaunch, "hang") == []


def test_a_run_that_continues_without_a_lost_node_is_watched(distlaunch: Cli) -> None:
    distlaunch.write("odd.py", SCRIPT)
    roles = ROLES.format(first="never", second="tells").replace('restart_role"\nmax_restarts = 1', 'ignore"')
    words = ("--detach", f"--roles={distlaunch.write('run.toml', roles)}")
    run = distlaunch("local", "--on-hang", "warn", *WATCHED, *words).json["result"]["run"]
    try:
        wait_until("both roles", lambda: events(distlaunch, "first_line", 0) and events(distlaunch, "first_line", 1))
        agent = json.loads((distlaunch.runs / run / "nodes/1/agent.json").read_text())["pid"]
        os.kill(agent, signal.SIGKILL)

        wait_until("the watchdog's report", lambda: events(distlaunch, "hang"), limit_s=LIMIT_S)
    finally:
        distlaunch("cancel", "--force", run)

    (event,) = events(distlaunch, "hang")
    assert event["message"].startswith("ranks 0, 1 are in "), event["message"]


@pytest.mark.slow
def test_a_run_of_which_one_node_writes_is_not_silent(distlaunch: Cli) -> None:
    script = str(distlaunch.write("odd.py", SCRIPT))

    run = distlaunch("local", "--nodes", "2", "--nproc-per-node", "1", "--on-hang", "end", *WATCHED, script, "tells")

    assert run.exit_code == 0, run.stderr
    assert events(distlaunch, "hang") == []
