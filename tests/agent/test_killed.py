"""What is left of a node whose agent was killed reports it, and its peers do not wait, even before all have met."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent import protocol
from launcher.agent.secret_files import KEY_FILE
from launcher.agent.ssh import preflight
from launcher.agent.ssh import run as host_run
from launcher.agent.store.client import Client
from launcher.agent.system import processes
from tests.agent.harness import LIMIT_S, all_exited
from tests.command import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.harness import Run, Runner

HEARTBEATS: dict[str, Any] = {"request": {"peer_timeout_s": 600.0}}
"""No loss is noticed by silence, and none is reported by a launcher, as there is none."""


def waiting(agents: Runner, nodes: int = 3, **request: Any) -> Run:
    """A run whose nodes have all registered with the store and have not met: a module takes long to import."""
    (agents.directory / "slow.py").write_text("import time\ntime.sleep(600)\n")
    request = {**HEARTBEATS["request"], **request}
    run = agents.start("print('never')\n", preload=("slow",), nodes=str(nodes), request=request)
    told = run.directory / "rendezvous.json"
    run.until(lambda: len(run.of("agent_started")) == nodes and told.exists())
    key = (run.directory / KEY_FILE).read_text().strip()
    with closing(Client("127.0.0.1", json.loads(told.read_text())["port"], key=key, timeout_s=LIMIT_S)) as store:
        # Each node sets this once it has asked to be missed.
        run.until(lambda: store.check([f"sign/{node}" for node in range(nodes)]))
    return run


@pytest.mark.parametrize("victim", [0, 2])
def test_an_agent_that_is_killed_before_the_rendezvous_ends_its_peers_which_name_it(
    agents: Runner, victim: int
) -> None:
    run = waiting(agents)
    left = [process.pid for process in run.processes(victim)]

    os.kill(run.agent_pid(victim), signal.SIGKILL)
    run.wait()

    assert run.result() == "failed"
    assert len(run.of("done")) == 2
    for cause in [*run.failures(victim), run.cause()]:
        assert (cause["class"], cause["node"], cause["signal"], cause["secondary"]) == (
            "killed",
            victim,
            "SIGKILL",
            False,
        )
        assert cause["message"] == f"the agent (pid {run.agent_pid(victim)}) was killed by SIGKILL"
    assert len(run.failures(victim)) == 1
    assert all_exited(*left)


@pytest.mark.torch
def test_an_agent_that_is_killed_while_it_looks_for_node_0_is_named_on_all_nodes(warm_agents: Runner) -> None:
    run = warm_agents.start("print('never')\n", nodes="3", late=0, **HEARTBEATS)
    run.until(lambda: {node for node, name, _ in run.events if name == "agent_started"} == {1, 2})
    run.until(lambda: all(len(run.processes(node)) > 2 for node in (1, 2)))

    os.kill(run.agent_pid(1), signal.SIGKILL)
    run.until(lambda: run.of("done"))
    run.resume(0)
    run.wait()

    assert {done["cause"]["node"] for done in run.of("done")} == {1}
    assert [done["node"] for done in run.of("done")] == [2, 0]


@pytest.mark.slow
@pytest.mark.parametrize("met", [False, True], ids=["before the rendezvous", "after it"])
def test_the_loss_of_a_whole_node_is_noticed_by_its_connection(agents: Runner, met: bool) -> None:
    if met:
        run = agents.start("import time\nprint('up', flush=True)\ntime.sleep(600)\n", nodes="3", **HEARTBEATS)
        run.until(lambda: len(run.stdout) == 3)
    else:
        run = waiting(agents)
    processes = run.processes(1)
    for process in processes:
        process.suspend()  # so that none can report another
    for process in reversed(processes):
        process.kill()

    run.wait()

    assert run.result() == "failed"
    assert {done["node"] for done in run.of("done")} == {0, 2}
    assert {done["cause"]["message"] for done in run.of("done")} == {"the agent of node 1 has exited"}
    assert {(done["cause"]["node"], done["cause"]["secondary"]) for done in run.of("done")} == {(1, True)}


@pytest.mark.parametrize("lost", [0, 1])
def test_a_node_lost_before_the_rendezvous_makes_the_run_lost_where_the_scheduler_replaces_it(
    agents: Runner, lost: int
) -> None:
    run = waiting(agents, replaces_lost=True)
    processes = run.processes(lost)
    for process in processes:
        process.suspend()
    for process in reversed(processes):
        process.kill()

    run.wait()

    assert [(done["result"], done["exit_code"]) for done in run.of("done")] == [("lost", 75)] * 2


def test_nodes_that_end_in_order_are_not_lost(agents: Runner) -> None:
    runs = [agents.start("print('end')\n", nodes="3", **HEARTBEATS) for _ in range(3)]

    for run in runs:
        assert run.wait().result() == "success"


@pytest.mark.parametrize("stopped", [1, 2, 3], ids=["agent", "agent and fork server", "all"])
def test_a_forced_signal_over_ssh_kills_an_agent_that_does_not_respond(agents: Runner, stopped: int) -> None:
    run = agents.start("import os, time\nos.fork() or os.setsid()\nprint('up', flush=True)\ntime.sleep(600)\n")
    run.until(lambda: run.stdout[0].count(b"up") == 2)
    agent, pids = run.agent_pid(), [process.pid for process in run.processes(0)]
    about = {"pid": agent, "start_ticks": processes.start_ticks(agent)}
    (run.directory / "nodes/0/started.json").write_text(json.dumps(about))
    for pid in [pids[:1], pids[:2], pids][stopped - 1]:
        os.kill(pid, signal.SIGSTOP)

    answer = host_run.send_signal(str(run.directory), 0, signal.SIGTERM, force=True)

    assert answer == {"signalled": True}
    assert all_exited(*pids, within_s=0)


def test_asking_why_an_agent_ended_waits_for_one_that_is_about_to_end(
    agents: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_run, "_ENDS_S", LIMIT_S)
    run = agents.start("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    run.until(lambda: run.stdout[0])
    agent = run.agent_pid()
    about = {"pid": agent, "start_ticks": processes.start_ticks(agent), "stream_from": 0}
    (run.directory / "nodes/0/started.json").write_text(json.dumps(about))
    os.kill(agent, signal.SIGTERM)

    answer = host_run.ended({"directory": str(run.directory), "node_rank": 0})

    assert answer["ended"]


def test_over_ssh_the_stream_has_what_the_rest_of_a_killed_agent_reports(tmp_path: Path) -> None:
    stream, about = tmp_path / "nodes/0/stream", {"pid": 99999999, "start_ticks": 1, "boot_id": preflight.boot_id()}
    stream.parent.mkdir(parents=True)
    stream.with_name("started.json").write_text(json.dumps(about))
    stream.write_bytes(protocol.encode_event("agent_started", 0))
    code = (
        "import sys; from launcher.agent.ssh import stream as it; it._SETTLE_S = 3600; "
        "it.tail(sys.argv[1], 0, 0, once=False)"
    )
    argv, pipe = [sys.executable, "-c", code, str(tmp_path)], subprocess.PIPE
    with subprocess.Popen(argv, cwd=ROOT, stdin=pipe, stdout=pipe) as tail:
        assert tail.stdout
        assert [tail.stdout.readline()[:2], b"agent_started" in tail.stdout.readline()] == [b"d ", True]
        with stream.open("ab") as file:
            file.write(protocol.encode_event("failure", 0, cause={}))
        announced, failure, end = tail.stdout.read().splitlines()

    assert (announced[:2], failure[:18], end[:2]) == (b"d ", b'{"event":"failure"', b"e ")
