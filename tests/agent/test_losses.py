"""What node 0 reports of many nodes that are silent at the same time."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

from launcher.agent.group import losses
from launcher.agent.group.whole import Whole
from launcher.agent.job import Job
from launcher.agent.network import ports
from launcher.agent.store.server import Server

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

    from launcher.agent.store.interface import Store


def test_a_thousand_silent_nodes_are_reported_in_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(losses, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    job = Job("r-1", ["x.py"], "script", "/", {}, "/", {}, min_nodes=1000, max_nodes=1000, host_timeout_s=6.0)
    store: Store = Server(ports.listening(only="127.0.0.1"), "k" * 32)
    told: list[tuple[float, str]] = []
    watched = losses.Losses(job, Whole(job, 0, lambda _name, message: told.append((now[0], message))))
    watched.expected = True

    def passes(seconds: int, signs: Mapping[int, str]) -> None:
        store.multi_set({f"sign/{node}": f"{sign} load 9" for node, sign in signs.items()})
        for _ in range(seconds):
            now[0] += 1.0
            watched.attend(store, "round/0/verdict", None)

    every = range(1, 1000)
    store.multi_set({f"name/{node}": "-" for node in every})
    passes(4, dict.fromkeys(every, "1"))
    passes(20, {node: "2" for node in every if node != 7})
    passes(12, dict.fromkeys(every, "3"))

    assert [message.partition(" for ")[0].partition(", after ")[0] for _, message in told] == [
        "no sign of node 7",
        "no sign of nodes 1-6,8-999",
        "nodes 1-999 respond again",
    ]
    assert told[0][1].endswith("though its host answers: it may be starved of CPU or memory, or stopped; "
                               "last known there: load 9")  # fmt: skip
    assert " for 8 s, though their hosts answer: they may be starved of CPU or memory, or stopped" in told[1][1]
    assert told[2][1].endswith(", after 20 to 24 s"), told[2]
