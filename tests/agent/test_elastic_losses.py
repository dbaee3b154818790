"""The rendezvous of elastic runs when nodes are lost, at any moment."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from launcher.agent.group import places
from launcher.agent.group.errors import NotNeededError, StopRequestedError
from testbed import wait_until
from tests.agent.meetings import LIMIT_S, Run

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from launcher.agent.group.elastic import ElasticNodes


def finish_and_lose(nodes: Run, node: ElasticNodes) -> None:
    """Lose a node whose part is done, while others still work."""
    assert not node.finished()
    nodes.lose(node)


def test_the_others_meet_again_when_one_is_lost_or_when_its_workers_fail(elastic_run: Callable[..., Run]) -> None:
    nodes = elastic_run(1, 3)
    first, second, third = nodes.meet(0, 1, 2)

    nodes.lose(third.node)
    wait_until("the next round", second.node.restart_requested, limit_s=LIMIT_S)
    second.node.request_restart()
    asks = [nodes.asks(first.node), nodes.asks(second.node)]

    assert [ask.result().workers for ask in asks] == [[1, 1]] * 2
    assert [first.node.restarts, second.node.restarts] == [0, 1]


def test_a_loss_after_that_has_all_meet_again(elastic_run: Callable[..., Run]) -> None:
    nodes = elastic_run(1, 2)
    first, second = nodes.meet(0, 1)
    assert not first.node.finished()

    nodes.lose(second.node)
    wait_until("the next round", first.node.restart_requested, limit_s=LIMIT_S)

    assert nodes.asks(first.node).result().workers == [1]


def test_the_others_need_not_meet_again_for_a_node_that_had_finished(elastic_run: Callable[..., Run]) -> None:
    nodes = elastic_run(1, 3)
    first, second, third = nodes.meet(0, 1, 2)
    finish_and_lose(nodes, second.node)
    wait_until("the loss", lambda: nodes.store.peek(["gone/1"]) == [b""], limit_s=LIMIT_S)

    assert not third.node.finished()
    assert not first.node.restart_requested()
    assert first.node.finished(), "all three have"


def test_at_the_end_no_one_waits_for_a_node_that_is_lost_after_it_has_finished(elastic_run: Callable[..., Run]) -> None:
    nodes = elastic_run(1, 3)
    first, second, third = nodes.meet(0, 1, 2)
    finish_and_lose(nodes, second.node)
    wait_until("the loss", lambda: nodes.store.peek(["round/0/shutdown"]) == [b"1"], limit_s=LIMIT_S)
    assert not third.node.finished()
    assert first.node.finished()

    assert [each.node._arrived(1) for each in (third, first)] == [2, first.node._expected()]


def test_a_node_that_leaves_by_itself_counts_once(elastic_run: Callable[..., Run]) -> None:
    """Its connection closes after that. And one that was only silent may come back, and leave by itself as well."""
    nodes = elastic_run(1, 3)
    first, second, third = nodes.meet(0, 1, 2)
    assert first.node._places is not None
    assert not second.node.finished()
    assert not third.node.finished()

    first.node._places.lose(second.node._name)
    counts = [second.node._arrived(1), third.node._arrived(1)]
    nodes.lose(third.node)
    left = f"round/0/left/{third.node._name}"
    wait_until("the loss", lambda: nodes.store.peek([left]) == [b"2"], limit_s=LIMIT_S)

    assert [*counts, first.node._arrived(0)] == [1, 2, 2]


def test_one_without_a_place_waits_for_the_end_once_a_node_has_finished(elastic_run: Callable[..., Run]) -> None:
    """No round follows, unless a node fails: it waits beyond the limit for that."""
    nodes = elastic_run(1, 2, timeout_s=3.0)
    first, second = nodes.meet(0, 1)
    spare = nodes.asks(2)
    finish_and_lose(nodes, second.node)
    instead = nodes.asks(1)

    time.sleep(3.5)
    assert spare.waits()
    assert instead.waits()
    assert "a place: a node has finished" in nodes.messages("waiting")

    first.node.request_restart()
    assert [ask.result().workers for ask in (nodes.asks(first.node), instead)] == [[1, 1]] * 2
    first.node.set_closed()
    assert isinstance(spare.error(), NotNeededError)


def test_a_failure_after_that_has_the_rest_meet_without_it(elastic_run: Callable[..., Run]) -> None:
    nodes = elastic_run(1, 2)
    first, second = nodes.meet(0, 1)
    finish_and_lose(nodes, second.node)
    wait_until("the loss", lambda: nodes.store.peek(["gone/1"]) == [b""], limit_s=LIMIT_S)

    first.node.request_restart()

    assert nodes.asks(first.node).result().workers == [1]


def test_one_that_is_lost_while_it_asks_holds_up_no_other(elastic_run: Callable[..., Run]) -> None:
    """Its request has a number, and never arrives."""
    nodes = elastic_run(2, 2)
    nodes.store.add(places.NUMBERED, 1)

    first, second = nodes.meet(0, 1)

    assert [first.result().rank, second.result().rank] == [0, 1]


def test_a_request_of_a_node_that_is_lost_meanwhile_is_no_node(
    elastic_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may arrive at one moment, and the loss may be handled first."""
    decide = places.Places._run
    monkeypatch.setattr(places.Places, "_run", lambda _: None)
    nodes = elastic_run(2, 3, last_call_s=0.5)
    first, lost = nodes.node(0), nodes.asks(1)
    wait_until("the request", lambda: nodes.store.peek([places.ASKED]) == [b"1"], limit_s=LIMIT_S)
    nodes.lose(lost.node)
    wait_until("the loss", lambda: nodes.store.peek(["gone/1"]) == [b""], limit_s=LIMIT_S)

    threading.Thread(target=decide, args=(first._places,), daemon=True).start()
    asks = [nodes.asks(first), nodes.asks(2)]

    assert [ask.result().workers for ask in asks] == [[1, 1]] * 2


def test_a_node_that_was_taken_for_lost_while_it_asked_asks_again(elastic_run: Callable[..., Run]) -> None:
    nodes = elastic_run(2, 2)
    first, second = nodes.node(0), nodes.asks(1)
    assert second.waits()
    assert first._places is not None

    first._places.lose(second.node._name)

    assert [ask.result().rank for ask in (nodes.asks(first), second)] == [0, 1]


def test_the_others_meet_once_more_when_one_is_lost_before_its_workers_start(elastic_run: Callable[..., Run]) -> None:
    """The others must not wait for the address of a node that is lost."""
    nodes = elastic_run(2, 3, last_call_s=3.0)
    first, second, third = (nodes.node(rank) for rank in range(3))
    began, over, agree = threading.Event(), threading.Event(), first._agree

    def hang(_: int) -> dict[str, Any]:
        began.set()
        over.wait(2 * LIMIT_S)
        raise StopRequestedError

    first._agree = hang  # type: ignore[assignment, method-assign]
    asks = [nodes.asks(node) for node in (first, second, third)]
    assert began.wait(LIMIT_S)  # the third one waits for the first one's address

    first._agree = agree  # type: ignore[method-assign]
    nodes.lose(second)
    wait_until("the third one to notice", lambda: nodes.messages("warning"), limit_s=20)
    again = nodes.asks(first)
    over.set()

    assert [ask.result().workers for ask in (again, asks[2])] == [[1, 1]] * 2
    assert nodes.messages("warning") == [
        "a node of this round was lost, or has ended its workers; the nodes meet once more"
    ]
