"""Which nodes are asked for stacks, and have to be quiet before a run hangs: those of the round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from launcher.agent.group.hangs import Hangs
from launcher.agent.group.losses import loss
from launcher.agent.group.whole import MET, Whole
from launcher.agent.job import Job

if TYPE_CHECKING:
    from tests.agent.stores import Served


def job(least: int) -> Job:
    return Job("r-1", ["x.py"], "script", "/", {}, "/", {}, min_nodes=least, max_nodes=2, hang_after_s=5.0)


def begin(node: Hangs, served: Served, *, round: int, place: int, quiet: bool = True) -> None:
    node.begin(round, 2, place)
    node.hear({"quiet": quiet})
    node.attend(served.client(), None, None)


def test_a_node_that_has_taken_the_place_of_a_lost_one_is_asked_whatever_its_number(served: Served) -> None:
    elastic, store = job(1), served.client()
    first, second, third = (Hangs(elastic, number) for number in (0, 1, 2))
    begin(first, served, round=0, place=0)
    begin(second, served, round=0, place=1)
    assert first.members(store) == [0, 1]
    assert first._all_are_quiet(store)

    begin(first, served, round=1, place=0)
    assert first.members(store) == [0], "the others have not begun this round"
    assert not first._all_are_quiet(store)
    begin(third, served, round=1, place=1, quiet=False)
    assert first.members(store) == [0, 2]
    assert not first._all_are_quiet(store)
    begin(third, served, round=1, place=1)
    assert first._all_are_quiet(store)


def test_what_a_node_says_before_its_first_round_does_not_count(served: Served) -> None:
    elastic, store = job(1), served.client()
    first, third = Hangs(elastic._replace(max_nodes=3), 0), Hangs(elastic._replace(max_nodes=3), 2)
    third.hear({"quiet": False})
    third.attend(served.client(), None, None)

    begin(first, served, round=0, place=0)
    begin(third, served, round=0, place=1)

    assert first.members(store) == [0, 2]
    assert first._all_are_quiet(store)


@pytest.mark.parametrize("begun", [0, 1, 2])
def test_of_a_run_with_a_fixed_number_all_nodes_are_asked(begun: int, served: Served) -> None:
    """Also those that have not begun the round: they are the ones that the others may wait for."""
    nodes, store = [Hangs(job(2), number) for number in range(2)], served.client()

    for number in range(begun):
        begin(nodes[number], served, round=3, place=number)

    assert nodes[0].members(store) == [0, 1]
    assert nodes[0]._all_are_quiet(store) is (begun == 2)


def test_nothing_more_is_expected_of_a_node_that_the_run_continues_without(served: Served) -> None:
    roles = [{"name": "first", "nodes": 2}, {"name": "actors", "nodes": 1, "on_failure": "ignore"}]
    of_all, store = job(3)._replace(max_nodes=3, roles=roles), served.client()
    runs = [Whole(of_all, number, lambda *_, **__: None) for number in range(3)]
    for place, each in enumerate(runs):
        begin(each.hangs, served, round=0, place=place, quiet=place < 2)
    store.set(MET, "")
    assert not runs[0].hangs._all_are_quiet(store)

    runs[0].publish_loss(store, "role/actors/round/0/verdict", loss(2, "its agent was killed"))

    assert runs[0].hangs._all_are_quiet(store)
    assert [each.hangs.members(store) for each in runs[:2]] == [[0, 1], [0, 1]]
