"""A node whose agent was killed is told by what is left of it, and its peers do not wait: also before all nodes have met."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from launcher.agent import channel, protocol
from launcher.agent.group import witness
from launcher.agent.group.agent_link import AgentLink
from launcher.agent.job import KEY_FILE
from launcher.agent.ssh import preflight
from launcher.agent.ssh import run as host_run
from launcher.agent.store.client import Client
from launcher.agent.system import processes
from tests.agent.harness import LIMIT_S, gone
from tests.command import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.harness import Run, Runner

HEARTBEATS: dict[str, Any] = {"request": {"peer_timeout_s": 600.0}}
"""Nobody is told by a silence, and nobody by a launcher: there is none."""


def waiting(agents: Runner, nodes: int = 3, **request: Any) -> Run:
    """A run whose nodes are all known to the store, and have not met: a module takes long to import."""
    (agents.directory / "slow.py").write_text("import time\ntime.sleep(600)\n")
    request = {**HEARTBEATS["request"], **request}
    run = agents.start("print('never')\n", preload=("slow",), nodes=str(nodes), request=request)
    told = run.directory / "rendezvous.json"
    run.until(lambda: len(run.of("agent_started")) == nodes and told.exists())
    key = (run.directory / KEY_FILE).read_text().strip()
    with closing(Client("127.0.0.1", json.loads(told.read_text())["port"], key=key, timeout_s=LIMIT_S)) as store:
        # Each sets that once it has said that it is to be missed.
        run.until(lambda: store.check([f"load/{node}" for node in range(nodes)]))
    return run


def family(run: Run, node: int) -> list[psutil.Process]:
    agent = psutil.Process(run.agent_pid(node))
    return [agent, *agent.children(recursive=True)]


def failures(run: Run, node: int) -> list[dict[str, Any]]:
    return [fields["cause"] for of, name, fields in run.events if name == "failure" and of == node]


@pytest.mark.parametrize("victim", [0, 2])
def test_an_agent_that_is_killed_before_the_rendezvous_ends_its_peers_who_name_it(agents: Runner, victim: int) -> None:
    run = waiting(agents)
    left = [process.pid for process in family(run, victim)]

    os.kill(run.agent_pid(victim), signal.SIGKILL)
    run.wait()

    assert run.result() == "failed"
    assert len(run.of("done")) == 2
    for cause in [*failures(run, victim), run.cause()]:
        assert (cause["class"], cause["node"], cause["signal"], cause["secondary"]) == ("killed", victim, "SIGKILL", False)
        assert cause["message"] == f"the agent (pid {run.agent_pid(victim)}) was killed by SIGKILL"
    assert len(failures(run, victim)) == 1
    assert gone(*left)


@pytest.mark.torch
def test_an_agent_that_is_killed_while_node_0_is_looked_for_is_named_to_all(warm_agents: Runner) -> None:
    run = warm_agents.start("print('never')\n", nodes="3", late=0, **HEARTBEATS)
    run.until(lambda: {node for node, name, _ in run.events if name == "agent_started"} == {1, 2})
    run.until(lambda: all(len(family(run, node)) > 2 for node in (1, 2)))

    os.kill(run.agent_pid(1), signal.SIGKILL)
    run.until(lambda: run.of("done"))
    run.go_on(0)
    run.wait()

    assert {done["cause"]["node"] for done in run.of("done")} == {1}
    assert [done["node"] for done in run.of("done")] == [2, 0]


@pytest.mark.slow
@pytest.mark.parametrize("met", [False, True], ids=["before the rendezvous", "after it"])
def test_a_node_of_which_nothing_is_left_is_noticed_by_its_connection(agents: Runner, met: bool) -> None:
    if met:
        run = agents.start("import time\nprint('up', flush=True)\ntime.sleep(600)\n", nodes="3", **HEARTBEATS)
        run.until(lambda: len(run.stdout) == 3)
    else:
        run = waiting(agents)
    processes = family(run, 1)
    for process in processes:
        process.suspend()  # so that none can tell of another
    for process in reversed(processes):
        process.kill()

    run.wait()

    assert run.result() == "failed"
    assert {done["node"] for done in run.of("done")} == {0, 2}
    assert {done["cause"]["message"] for done in run.of("done")} == {"the agent of node 1 is gone"}
    assert {(done["cause"]["node"], done["cause"]["secondary"]) for done in run.of("done")} == {(1, True)}


@pytest.mark.parametrize("lost", [0, 1])
def test_a_node_that_is_lost_before_the_rendezvous_is_one_that_comes_back_where_the_scheduler_replaces_it(
    agents: Runner, lost: int
) -> None:
    run = waiting(agents, replaces_lost=True)
    processes = family(run, lost)
    for process in processes:
        process.suspend()
    for process in reversed(processes):
        process.kill()

    run.wait()

    assert [(done["result"], done["exit_code"]) for done in run.of("done")] == [("lost", 75)] * 2


def test_who_ends_in_order_is_not_lost(agents: Runner) -> None:
    runs = [agents.start("print('end')\n", nodes="3", **HEARTBEATS) for _ in range(3)]

    for run in runs:
        assert run.wait().result() == "success"


@pytest.mark.parametrize("stopped", [1, 2, 3], ids=["agent", "agent and fork server", "all"])
def test_a_forced_signal_over_ssh_kills_an_agent_that_hears_nothing(agents: Runner, stopped: int) -> None:
    run = agents.start("import os, time\nos.fork() or os.setsid()\nprint('up', flush=True)\ntime.sleep(600)\n")
    run.until(lambda: run.stdout[0].count(b"up") == 2)
    agent, pids = run.agent_pid(), [process.pid for process in family(run, 0)]
    about = {"pid": agent, "start_ticks": processes.start_ticks(agent)}
    (run.directory / "nodes/0/started.json").write_text(json.dumps(about))
    for pid in [pids[:1], pids[:2], pids][stopped - 1]:
        os.kill(pid, signal.SIGSTOP)

    answer = host_run.send_signal(str(run.directory), 0, signal.SIGTERM, force=True)

    assert answer == {"signalled": True}
    assert gone(*pids, within_s=0)


def test_an_agent_that_is_about_to_end_is_waited_for_by_who_asks_why_it_did(
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


def test_over_ssh_too_it_is_heard_what_is_left_of_a_killed_agent_has_to_say(tmp_path: Path) -> None:
    stream, about = tmp_path / "nodes/0/stream", {"pid": 99999999, "start_ticks": 1, "boot_id": preflight.boot_id()}
    stream.parent.mkdir(parents=True)
    stream.with_name("started.json").write_text(json.dumps(about))
    stream.write_bytes(protocol.encode_event("agent_started", 0))
    code = "import sys; from launcher.agent.ssh import stream as it; it._SETTLE_S = 3600; it.tail(sys.argv[1], 0, 0, once=False)"
    argv, pipe = [sys.executable, "-c", code, str(tmp_path)], subprocess.PIPE
    with subprocess.Popen(argv, cwd=ROOT, stdin=pipe, stdout=pipe) as tail:
        assert tail.stdout
        assert [tail.stdout.readline()[:2], b"agent_started" in tail.stdout.readline()] == [b"d ", True]
        with stream.open("ab") as file:
            file.write(protocol.encode_event("failure", 0, cause={}))
        announced, failure, end = tail.stdout.read().splitlines()

    assert (announced[:2], failure[:18], end[:2]) == (b"d ", b'{"event":"failure"', b"e ")


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "its parent was first"])
@pytest.mark.parametrize(
    ("ends", "says", "crash", "kind", "sig", "said"),
    [
        ("exit 7", True, "", "node", None, "exited without reporting a result"),
        ("kill -SEGV $$", False, "Fatal Python error: Segmentation fault\n\n", "killed", "SIGSEGV", "was killed by SIGSEGV"),
        ("kill -KILL $$", False, "", "killed", "SIGKILL", "was killed by SIGKILL"),
    ],
)
def test_an_agent_that_ended_without_a_word_is_told_by_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, says: bool, crash: str, kind: str, sig: str | None, said: str,
    seen: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(witness, "_ENDS_S", LIMIT_S)
    (tmp_path / "crash").write_text(crash)
    with subprocess.Popen(["sh", "-c", f"read x; {ends}"], stdin=subprocess.PIPE) as process:
        about = {"node_rank": 1, "host": "h", "directory": "/", "agent": process.pid, "scratch": str(tmp_path)}
        found = witness.Witness(None, about)  # type: ignore[arg-type]
        assert process.stdin
        process.stdin.close()
        if not seen:
            process.wait()

        why = found._cause(says)

    code = ", exit code 7" if says and seen else ""
    assert (why["class"], why["signal"], why["message"]) == (kind, sig, f"the agent (pid {process.pid}) {said}{code}")


@pytest.mark.parametrize("fault", ["SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE"])
def test_an_agent_that_crashes_is_told_by_its_signal_where_its_parent_waits_for_it(agents: Runner, fault: str) -> None:
    run = agents.start("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    run.until(lambda: run.stdout[0])
    with ThreadPoolExecutor(1) as parent:
        ended = parent.submit(os.waitpid, run.agent_pid(), 0)

        os.kill(run.agent_pid(), signal.Signals[fault])

        assert os.WTERMSIG(ended.result()[1]) == signal.Signals[fault]
    run.until(lambda: failures(run, 0))  # what is left of the node tells it a moment later
    run.wait()
    (cause,) = failures(run, 0)
    assert (cause["class"], cause["signal"]) == ("killed", fault)


def test_an_agent_that_ends_by_itself_and_leaves_its_node_behind_is_not_called_killed() -> None:
    """Its parent may have waited for it before anybody else can see how it has ended."""
    heard: list[bool] = []
    for says in (False, True):
        agent: channel.Channel[Any, Any]
        mine: channel.Channel[Any, Any]
        agent, mine = channel.Channel.pair()
        child = os.fork()
        if child == 0:
            agent.close()
            AgentLink(mine, lambda ends: os._exit(40 + ends))
            signal.pause()
        mine.close()
        if says:
            agent.send({"ends": True})
        agent.close()
        heard.append(os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 41)
    assert heard == [False, True]


CANNOT_GO_ON = """#!{python}
import os, runpy, signal, sys
import psutil
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0])
if "--node-rank" in sys.argv:
    from distlaunch_agent.node import agent as node
    turn = node.Node._turn
    def fails(self, *given):
        if not os.path.exists("works"):
            return turn(self, *given)
        if node.Node._end_processes is fails:
            left = psutil.Process().children(recursive=True)
            os.write(out, " ".join(str(process.pid) for process in left).encode())
            for process in left:
                process.suspend()
        node.Node._end_processes = fails
        raise MemoryError
    node.Node._turn = fails
    left, out = os.pipe()
    child = os.fork()
    if child:
        os.close(out)
        os.waitpid(child, 0)
        for pid in reversed(os.read(left, 1000).split()):  # the fork server last: it waits for the others, but not for long
            os.kill(int(pid), signal.SIGCONT)
        sys.exit(1)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Its agents have no memory left once a worker runs, not even to end it, and their exit code is gone when that is looked at."""


def test_an_agent_that_cannot_end_in_order_says_that_it_ends(agents: Runner) -> None:
    wrapper = agents.directory / "python"
    wrapper.write_text(CANNOT_GO_ON.format(python=sys.executable))
    wrapper.chmod(0o755)

    run = agents.start("import time\nopen('works', 'w').close()\nprint('works')\ntime.sleep(600)\n", python=str(wrapper))
    run.until(lambda: failures(run, 0))  # what is left of the node tells it when the agent has ended
    run.wait()

    cause = failures(run, 0)[-1]
    assert (cause["class"], cause["signal"]) == ("node", None)
    assert cause["message"] == f"the agent (pid {run.of('agent_started')[0]['pid']}) exited without reporting a result"
