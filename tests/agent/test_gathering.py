"""The stacks of many nodes, each with many ranks, are together larger than a message of the store may be."""

from __future__ import annotations

import json
import queue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from launcher.agent.group.hangs import Hangs
from launcher.agent.group.sampling import ASK, Gathering
from launcher.agent.store import exchange

if TYPE_CHECKING:
    import pytest

    from tests.agent.stores import Served


def answer(node: int, size: int) -> dict[str, Any]:
    return {"number": 1, "host": f"n{node}", "groups": ["x" * size], "flight": None}


def publish(served: Served, node: int, stacks: dict[str, Any]) -> None:
    """As the thread of that node does."""
    heard: queue.Queue[Any] = queue.Queue()
    heard.put({"stacks": stacks})
    job = SimpleNamespace(hang_after_s=0.0)
    hangs = SimpleNamespace(_heard=heard, _answered=0, _acted=None, _node=node, _job=job, send=print)
    hangs._publish = lambda store, message: Hangs._publish(hangs, store, message)  # type: ignore[arg-type]
    Hangs.attend(hangs, served.client(), None, None)  # type: ignore[arg-type]


def test_the_answers_of_many_nodes_are_read(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MAX_BYTES", 1 << 16)
    client, nodes = served.client(), range(100)
    gathering = Gathering(client, nodes, 600.0)
    assert served.store.get(ASK) == b"1"
    for node in [*nodes][1:]:
        served.store.set(f"stacks/1/{node}", json.dumps(answer(node, 1024)))
    assert not gathering.is_over(client), "one is missing"
    served.store.set("stacks/1/0", json.dumps(answer(0, 1024)))

    assert gathering.is_over(client)
    assert [each["host"] for each in gathering.answers] == [f"n{node}" for node in nodes]


def test_an_answer_that_is_too_large_comes_without_what_makes_it_so(served: Served) -> None:
    dumps = {"role": "default", "files": "n0:/x*", "problem": "", "dumps": "y" * (65 << 20)}
    publish(served, 0, {**answer(0, 10), "flight": dumps})
    publish(served, 1, answer(1, 65 << 20))
    client = served.client()
    gathering = Gathering(client, range(2), 600.0)

    assert gathering.is_over(client)
    with_dumps, groups = gathering.answers
    assert (with_dumps["groups"], with_dumps["flight"]["dumps"]) == (["x" * 10], "")
    assert "too large" in with_dumps["flight"]["problem"]
    assert (groups["host"], groups["groups"]) == ("n1", [])
