"""The rendezvous of elastic runs: who has a place in which round, as the nodes learn it over the run's store."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from launcher.agent.group import places
from launcher.agent.group.errors import NotNeededError
from launcher.agent.store.client import Client
from testbed import wait_until
from tests.agent.meetings import LIMIT_S, Run

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.agent.harness import Runner


def test_nodes_have_the_ranks_of_their_order_in_the_plan_and_learn_how_many_workers_each_has(
    elastic_run: Callable[..., Run],
) -> None:
    nodes = elastic_run(3, 3)
    asks = [nodes.asks(rank, workers) for rank, workers in ((2, 4), (0, 2), (1, 2))]

    places_ = [ask.result() for ask in asks]

    assert [place.rank for place in places_] == [2, 0, 1]
    assert all(place.workers == [2, 2, 4] for place in places_)
    assert len({(place.master_addr, place.master_port) for place in places_}) == 1


def test_the_first_round_waits_for_more_nodes_until_the_last_call(elastic_run: Callable[..., Run]) -> None:
    nodes = elastic_run(1, 3, last_call_s=2.0)
    first = nodes.asks(0)
    assert first.waits()

    second = nodes.asks(1)

    assert (first.result().workers, second.result().rank) == ([1, 1], 1)


def test_a_node_that_comes_later_has_all_meet_again_and_does_not_wait_for_one_that_left(
    elastic_run: Callable[..., Run],
) -> None:
    nodes = elastic_run(1, 2, last_call_s=0.0)
    (first,) = nodes.meet(0)
    second = nodes.asks(1)
    wait_until("the next round", first.node.restart_requested, limit_s=LIMIT_S)

    again = nodes.asks(first.node)

    assert [ask.result().rank for ask in (again, second)] == [0, 1]
    assert (first.node.round, second.node.round, first.node.restarts) == (1, 1, 0)


def test_a_node_without_a_place_waits_beyond_the_limit_and_takes_that_of_a_lost_one(
    elastic_run: Callable[..., Run],
) -> None:
    nodes = elastic_run(2, 2, timeout_s=3.0)
    first, second = nodes.meet(0, 1)
    spare = nodes.asks(2)
    time.sleep(3.5)
    assert spare.waits()
    assert nodes.messages("waiting") == ["a place: the run has its 2 nodes"]

    nodes.lose(second.node)
    again = nodes.asks(first.node)

    assert [ask.result().workers for ask in (again, spare)] == [[1, 1]] * 2


def test_a_node_whose_workers_end_slowly_keeps_its_place_although_another_waits_for_one(
    elastic_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_LATE_S", 0.1)
    nodes = elastic_run(2, 2)
    first, second = nodes.meet(0, 2)
    spare = nodes.asks(1)
    assert spare.waits()

    first.node.request_restart()
    again = nodes.asks(first.node)
    assert again.waits()
    slow = nodes.asks(second.node)

    assert [ask.result().rank for ask in (again, slow)] == [0, 1]
    assert spare.waits()


def test_one_that_takes_longer_loses_it_and_may_wait_for_another_until_the_end(
    elastic_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_LATE_S", 0.2)
    nodes = elastic_run(2, 2, grace_s=0.1)
    first, second = nodes.meet(0, 1)
    spare = nodes.asks(2)
    assert spare.waits()

    first.node.request_restart()
    again = nodes.asks(first.node)

    assert [ask.result().rank for ask in (again, spare)] == [0, 1]
    late = nodes.asks(second.node)
    assert late.waits()
    first.node.set_closed()
    assert isinstance(late.error(), NotNeededError)
    assert [node._arrived(1) for node in (second.node, spare.node, first.node)] == [1, 2, first.node._expected()]


def test_nodes_that_come_one_after_the_other_are_taken_together(
    elastic_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = elastic_run(1, 3, last_call_s=0.0)
    (first,) = nodes.meet(0)
    second = nodes.asks(1)
    assert second.waits()
    assert not first.node.restart_requested()  # another one may come

    third = nodes.asks(2)
    wait_until("the next round", first.node.restart_requested, limit_s=LIMIT_S)

    assert [ask.result().rank for ask in (nodes.asks(first.node), second, third)] == [0, 1, 2]

    monkeypatch.setattr(places, "_MORE_COME_S", 0.1)
    alone = elastic_run(1, 3, last_call_s=0.0)
    (first,) = alone.meet(0)
    second = alone.asks(1)
    wait_until("the next round", first.node.restart_requested, limit_s=LIMIT_S)


def test_once_a_node_has_finished_those_that_come_start_no_round_and_are_not_needed(
    elastic_run: Callable[..., Run],
) -> None:
    nodes = elastic_run(1, 2, last_call_s=0.0)
    (first,) = nodes.meet(0)
    assert first.node.finished()

    late = nodes.asks(1)
    assert late.waits()
    assert not first.node.restart_requested()
    first.node.set_closed()

    assert isinstance(late.error(), NotNeededError)
    assert isinstance(nodes.asks(1).error(), NotNeededError)


def test_a_node_that_finishes_after_a_round_was_given_up_meets_the_others_again(
    elastic_run: Callable[..., Run],
) -> None:
    nodes = elastic_run(2, 2)
    first, second = nodes.meet(0, 1)

    second.node.request_restart()
    again = nodes.asks(second.node)
    assert again.waits()

    assert first.node._expected() == 2
    assert not first.node.finished()
    assert not first.node.members.has_finished
    assert [ask.result().rank for ask in (nodes.asks(first.node), again)] == [0, 1]


def test_no_round_begins_without_node_0(elastic_run: Callable[..., Run]) -> None:
    """It has the run's store, and its workers may start last."""
    nodes = elastic_run(1, 2)
    first = nodes.node(0)
    second, third = nodes.asks(1), nodes.asks(2)
    assert second.waits()
    assert third.waits()

    asks = [nodes.asks(first), second]

    assert [ask.result().rank for ask in asks] == [0, 1]
    assert third.waits()


def test_too_few_nodes_are_told_and_given_up_at_the_limit(elastic_run: Callable[..., Run]) -> None:
    nodes = elastic_run(2, 3, timeout_s=3.0)

    error = nodes.asks(0).error()

    assert str(error) == "waited 3 s for 2 nodes: fewer have come"
    assert nodes.messages("waiting") == ["2 nodes, of which 1 is there"]


def test_a_node_makes_as_few_calls_in_a_run_of_fifty_as_in_one_of_three(
    elastic_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's rendezvous changes one state with all nodes: there, a node of many has many changes to repeat."""
    calls: dict[str, int] = {}
    ask = Client._ask

    def counted(self: Client, call: str, *args: Any) -> Any:
        name = threading.current_thread().name
        if name.startswith("asks"):
            calls[name] = calls.get(name, 0) + 1
        return ask(self, call, *args)

    most = []
    monkeypatch.setattr(Client, "_ask", counted)
    for count in (3, 50):
        calls.clear()
        elastic_run(count, count).meet(*range(count))
        most.append(max(calls.values()))

    assert most[0] == most[1] <= 10, most


def test_an_elastic_run_needs_no_torch(agents: Runner) -> None:
    (agents.directory / "torch.py").write_text("raise SystemExit('imported')\n")

    run = agents("import os\nprint(os.environ['WORLD_SIZE'])\n", nodes="1:2", env=(f"PYTHONPATH={agents.directory}",))

    assert run.result() == "success"
    assert run.stdout == {0: b"2\n", 1: b"2\n"}
    assert {facts["torch_version"] for facts in run.of("host_facts")} == {None}
