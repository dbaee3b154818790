"""Whether a run has ended well is decided once for all its nodes: before that any of them can stop it, after that none."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.gang import Gang, NotNeededError, connect
from launcher.agent.gang_process import _present_store
from launcher.agent.job import Job
from tests.testbed import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STOP = {"stop": "preempted", "deadline": 0.0, "signal": 15, "leaves": False}


class Nodes:
    """Two nodes of a run over a real store, each with connections of its own."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.job = Job("r-1", ["x.py"], "script", "/", {}, "/", {}, min_nodes=2, max_nodes=2, key="k" * 64)
        port = listener.getsockname()[1]
        self.connected: Callable[[], Any] = lambda: connect(self.job, "127.0.0.1", port, listen_fd=None, warn=print)
        store = connect(self.job, "127.0.0.1", port, listen_fd=listener.detach(), warn=print)
        self.clients: list[Any] = [self.connected(), self.connected()]
        stores: list[Any] = [(store, store), self.clients]
        self.gangs = [
            Gang(self.job, rank, f"n{rank}", "127.0.0.1", store, watched, lambda *_, **__: None)
            for rank, (store, watched) in enumerate(stores)
        ]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    found = Nodes()
    yield found
    for client in found.clients:
        client.close()


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stop_after_all_have_finished_comes_too_late_whoever_has_heard_it(nodes: Nodes, stopped: int) -> None:
    one, other = nodes.gangs[stopped], nodes.gangs[1 - stopped]
    assert not one.finished()
    assert other.finished(), "it is the last one"

    one.stop(STOP)

    assert one.ended_well(), "though it has not asked again since it had finished"
    assert other.ended_well()


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_run_that_was_stopped_has_not_ended_well_when_all_finish_after_that(nodes: Nodes, stopped: int) -> None:
    one, other = nodes.gangs[stopped], nodes.gangs[1 - stopped]
    assert not one.finished()
    one.stop(STOP)
    wait_until("the other to hear it", other.heard)

    assert not other.finished()

    assert not one.ended_well()
    assert not other.ended_well()


def test_who_comes_back_to_a_run_that_is_over_is_not_needed(nodes: Nodes) -> None:
    setup = {"node_rank": 1, "host": "n9"}
    assert not nodes.gangs[0].finished()
    assert nodes.gangs[1].finished()

    with pytest.raises(NotNeededError):
        _present_store(nodes.job, setup, None, nodes.connected)  # type: ignore[arg-type]
