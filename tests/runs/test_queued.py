"""How long a run has waited in its cluster's queue, and where its nodes are then."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from launcher.agent.protocol import Event
from launcher.console import summary
from launcher.console.places import Place, Places, rows
from launcher.runs import status
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("plan", "attempt", "started", "queued_s", "text"),
    [
        ({"has_queue": True}, 0, (1012.5, 1014.0), 12.5, "12.5 s in the queue"),
        ({"has_queue": True}, 0, (1000.4,), 0.4, ""),
        ({"has_queue": True}, 0, (990.0,), 0.0, ""),
        ({"has_queue": True}, 0, (), None, ""),
        ({"has_queue": True}, 1, (1012.5,), None, ""),
        ({}, 0, (1012.5,), None, ""),
    ],
    ids=["waited", "shortly", "clocks differ", "waits", "restarted by its user", "no queue"],
)
def test_the_wait_ends_with_the_first_agent(
    tmp_path: Path, plan: dict[str, bool], attempt: int, started: tuple[float, ...], queued_s: float | None, text: str
) -> None:
    run = make(tmp_path, "train-20250101-000000-aaaa")
    run = replace(run, created=1000.0, attempt=attempt, plan={**run.plan, **plan})
    report = status.report_of(run)
    for node, when in enumerate(started):
        report.add(node, Event("agent_started", {"time": when, "host": "n", "attempt": attempt}))

    outcome = report.outcome()

    assert outcome.to_json()["queued_s"] == queued_s
    assert summary.queued(outcome.queued_s) == text


def test_the_table_of_hosts_appears_once_all_nodes_have_met_and_again_only_if_it_has_changed() -> None:
    places = Places(shown=True)

    def met(node: int, host: str, round_number: int) -> list[str]:
        places.hosts[node] = host
        return places.met(node, {"nodes": 2, "ranks": [node], "round": round_number})

    assert met(1, "b", 0) == []
    assert [line.split() for line in met(0, "a", 0)] == [["HOST", "NODE", "RANKS"], ["a", "0", "0"], ["b", "1", "1"]]
    assert (met(0, "a", 1), met(1, "b", 1)) == ([], []), "a restart on the same hosts"
    assert met(0, "a", 2) == []
    assert met(1, "c", 2)[-1].split() == ["c", "1", "1"]


def test_many_hosts_with_consecutive_numbers_share_a_row() -> None:
    many = [Place(f"n{node + 1:02}", node, (2 * node, 2 * node + 1)) for node in range(64)]
    more = [Place("login", 64, (128,)), Place("gpu9.x", 65, (129,)), Place("gpu10.x", 66, (130,))]

    assert rows([*many, *more]) == [
        ("n[01-64]", "0-63", "0-127"),
        ("login", "64", "128"),
        ("gpu[9-10].x", "65-66", "129-130"),
    ]
    assert rows(many[:2]) == [("n01", "0", "0-1"), ("n02", "1", "2-3")]


def test_a_message_of_several_lines_is_printed_as_lines_and_one_restart_is_singular() -> None:
    refused = {"class": "submission", "message": "2 of 2 hosts cannot take part:\n  n1: in use\n  n2: in use"}

    assert summary.cause_lines(refused)[1:] == ["  n1: in use", "  n2: in use"]
    assert (summary.restarts(1, 0), summary.restarts(2, 1)) == (", 1 restart", ", 2 restarts, attempt 1")
