"""Whether a run has succeeded is decided once for all nodes: until then any of them can stop it, then none can."""

from __future__ import annotations

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.cause import of_node
from launcher.agent.failures import CannotError
from launcher.agent.group import mpi
from launcher.agent.group.errors import NotNeededError, StopRequestedError
from launcher.agent.group.process import _present_store
from launcher.agent.group.rendezvous import FixedNodes, connect
from launcher.agent.group.workers import Workers
from launcher.agent.job import Job
from launcher.agent.mpi import vendor
from launcher.agent.node.messages import Messages
from launcher.agent.starter import Starter
from testbed import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from launcher.agent.messages import AgentToGroup
    from launcher.agent.ranks import Group
    from tests.agent.harness import Runner

STOP: AgentToGroup = {"stop": "preempted", "deadline": 0.0, "signal": 15, "leaves": False}


class Nodes:
    """Two nodes of a run over a real store, each with its own connection."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.job = Job("r-1", ["x.py"], "script", "/", {}, "/", {}, min_nodes=2, max_nodes=2, key="k" * 64)
        port = listener.getsockname()[1]
        self.connected: Callable[[], Any] = lambda: connect(self.job, "127.0.0.1", port, listen_fd=None, warn=print)
        store = connect(self.job, "127.0.0.1", port, listen_fd=listener.detach(), warn=print)
        self.clients: list[Any] = [self.connected()]
        self.parts = [
            FixedNodes(self.job, rank, f"n{rank}", "127.0.0.1", each, lambda *_, **__: None)
            for rank, each in enumerate([store, *self.clients])
        ]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    found = Nodes()
    yield found
    for client in found.clients:
        client.close()


EARLY = """
import os, sys, time
while os.environ["RANK"] != "1" and not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
print("done", flush=True)
"""


@pytest.mark.slow
def test_a_node_that_is_preempted_after_its_workers_have_succeeded_ends_nothing(agents: Runner) -> None:
    kubernetes = {"replaces_lost": True, "sigterm_means": "preempted", "peer_timeout_s": 1.5, "heartbeat_s": 0.5}
    run = agents.start(EARLY, str(agents.directory / "go"), nodes="3", request=kubernetes)
    run.until(lambda: any(fields["rank"] == 1 for fields in run.of("worker_exited")))
    os.kill(run.agent_pid(1), signal.SIGTERM)
    run.until(lambda: run.of("done"))
    (left,) = run.of("done")
    beats = len(run.of("heartbeat"))
    run.until(lambda: len(run.of("heartbeat")) > beats + 24)  # node 0 would miss it by now
    (agents.directory / "go").touch()
    run.wait()

    assert (left["node"], left["result"], left["exit_code"]) == (1, "success", 0)
    assert run.result() == "success"
    assert run.of("stopping") == []
    assert all(said == b"done\n" for said in run.stdout.values())


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stop_after_all_nodes_have_finished_comes_too_late_on_every_node(nodes: Nodes, stopped: int) -> None:
    one, other = nodes.parts[stopped], nodes.parts[1 - stopped]
    assert not one.finished()
    assert other.finished(), "it is the last one"

    one.request_stop(STOP)

    assert one.all_succeeded(), "although it has not asked again since it finished"
    assert other.all_succeeded()


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_run_that_was_stopped_has_not_succeeded_even_if_all_nodes_finish_afterwards(
    nodes: Nodes, stopped: int
) -> None:
    one, other = nodes.parts[stopped], nodes.parts[1 - stopped]
    assert not one.finished()
    one.request_stop(STOP)
    wait_until("the other node to receive it", lambda: other.verdict)

    assert not other.finished()

    assert not one.all_succeeded()
    assert not other.all_succeeded()


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stop_after_a_restart_was_decided_reaches_the_next_round(nodes: Nodes, stopped: int) -> None:
    one, other = nodes.parts[stopped], nodes.parts[1 - stopped]
    other.publish("restart", cause={})
    wait_until("the restart", one.restart_requested)

    one.request_stop(STOP)
    wait_until("its message to be sent", lambda: not one._watch.has_unpublished)
    other._watch.begin("round/1/verdict", expects_signs=True)

    wait_until("the stop", lambda: other.verdict)
    assert other.verdict
    assert other.verdict["kind"] == "stop"


def test_a_stop_gives_the_workers_of_a_node_with_another_clock_the_same_time(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = nodes.parts
    one.request_stop({**STOP, "deadline": time.time() + 3600.0})
    wait_until("the other node to receive it", lambda: other.verdict)
    deadlines: list[float] = []
    stopping = SimpleNamespace(stop=lambda *_, deadline, by: deadlines.append(deadline))  # noqa: ARG005
    agent: Any = SimpleNamespace(_outcome=SimpleNamespace(), _stopping=stopping)
    now = time.time() + 100_000.0
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time", lambda: now)
        Messages._group_ended(agent, {"result": "stopped_by_peer", "word": other.verdict})  # type: ignore[typeddict-item]

    (deadline,) = deadlines
    assert now + 1800.0 < deadline <= now + 3600.0


def test_a_node_that_comes_back_to_a_finished_run_is_not_needed(nodes: Nodes) -> None:
    setup = {"node_rank": 1, "host": "n9"}
    assert not nodes.parts[0].finished()
    assert nodes.parts[1].finished()

    with pytest.raises(NotNeededError):
        _present_store(nodes.job, setup, None, nodes.connected)  # type: ignore[arg-type]


def test_a_node_of_the_next_run_at_the_port_of_a_finished_one_waits_for_its_own(nodes: Nodes) -> None:
    following = Nodes()
    assert not nodes.parts[0].finished()
    assert nodes.parts[1].finished()
    stores = iter([nodes.connected(), *following.clients])
    told: list[str] = []
    agent: Any = SimpleNamespace(event=lambda name, **_: told.append(name))
    job = nodes.job._replace(rendezvous={"any_order": True})

    found = _present_store(job, {"node_rank": 1, "host": "n9"}, agent, lambda: next(stores))  # type: ignore[typeddict-item]

    assert [found] == following.clients
    assert told == ["waiting"]
    found.close()


def test_a_failure_that_ends_the_run_is_not_lost_after_a_restart_was_decided(nodes: Nodes) -> None:
    one, other = nodes.parts
    one.publish("restart", cause={})
    agent: Any = SimpleNamespace(send=lambda _: None)
    workers = Workers(nodes.job, other, agent, agent, "/")

    assert not workers.tell_peers(restarts=0, why=of_node(host="n1", node=1, message="broken", time=0.0))

    one._watch.begin("round/1/verdict", expects_signs=True)
    wait_until("the failure", lambda: one.verdict)
    assert one.verdict
    assert (one.verdict["kind"], one.verdict["cause"]["message"]) == ("fail", "broken")


@pytest.mark.parametrize("lost", [False, True])
def test_a_node_whose_mpi_ranks_are_still_to_come_restarts_with_the_others(
    nodes: Nodes, lost: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one, other = nodes.parts
    begun: list[int] = []

    class World(Starter):
        """Of one node: its ranks do not come, or mpirun ends with those of the other nodes."""

        def __init__(self, *args: Any) -> None:
            super().__init__()
            self._tick = args[4]

        def start(self, group: Group, _: Any) -> None:
            begun.append(group.restarts)
            if group.restarts:
                raise StopRequestedError  # the end of this test
            assert one.publish("restart", cause={})["kind"] == "restart"
            if lost:
                raise CannotError("mpirun ended with exit code 1")
            for _ in range(1000):
                self._tick()
                time.sleep(0.01)

        def end(self) -> None:
            """End the round."""

    monkeypatch.setattr(mpi, "World", World)
    monkeypatch.setattr(mpi, "Hub", lambda _: None)
    monkeypatch.setattr(vendor, "look_ahead", lambda *_, **__: None)
    server: Any = SimpleNamespace(ready=lambda *_: False)
    setup: Any = {"workers": 1, "scratch": str(tmp_path), "directory": str(tmp_path)}
    group = mpi.MpiGroup(nodes.job, other, server, server, setup)
    group._workers.requests.contract = SimpleNamespace(vendor="an MPI", exchanges=False, check=lambda *_: None)  # type: ignore[assignment]
    with ThreadPoolExecutor(1) as pool:
        met = pool.submit(
            lambda: [one.next_rendezvous(1), wait_until("it", one.restart_requested), one.next_rendezvous(1)]
        )
        try:
            with pytest.raises(StopRequestedError):
                group._start()
            met.result()
        finally:
            one.stopping.set()

    assert begun == [0, 1]
