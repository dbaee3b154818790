"""From records to a state, a first cause and an exit code; docs/agent-stream.md has the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent import protocol
from launcher.agent.protocol import Event, Foreign
from launcher.runs import records, status
from launcher.runs.outcome import EXIT_CODES, RunReport
from tests.runs.reports import RUNNING, STARTED, Sent, cause, done, report
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("nodes", "alive", "state"),
    [
        ([[], []], (), "pending"),
        ([[], []], ("pending", "pending"), "pending"),
        ([[], []], ("running", "pending"), "starting"),
        ([[STARTED], []], ("running", "pending"), "starting"),
        ([RUNNING, RUNNING], ("running", "running"), "running"),
        ([RUNNING, [*RUNNING, ("stopping", {"reason": "timeout"})]], (), "stopping"),
        ([RUNNING, [*RUNNING, done("failed", cause("user_code", 5))]], (), "stopping"),
        ([[*RUNNING, done("success")], RUNNING], (), "running"),
        ([[], []], ("unknown", "unknown"), "unknown"),
        ([[done("success")], [done("success")]], ("ended", "ended"), "success"),
        ([[done("success")], [done("failed", cause("user_code", 5))]], (), "failed"),
        ([[done("timeout", cause("timeout", 5))], [done("timeout", cause("timeout", 6))]], (), "timeout"),
        ([[done("preempted", cause("preempted", 5))], [done("failed", cause("fabric", 6))]], (), "preempted"),
        ([[done("cancelled", cause("cancelled", 5))], [done("cancelled", cause("cancelled", 6))]], (), "cancelled"),
        ([[done("failed")], [done("success")]], (), "failed"),
    ],
)
def test_the_state_follows_from_the_nodes_events(nodes: list[Any], alive: tuple[str, ...], state: str) -> None:
    assert report(*nodes).outcome(alive).state == state


def test_every_final_state_has_its_exit_code() -> None:
    assert EXIT_CODES == {"success": 0, "failed": 1, "preempted": 1, "timeout": 124, "cancelled": 130, "not_chosen": 1}


def test_the_first_cause_is_the_earliest_that_is_not_secondary() -> None:
    first = cause("user_code", 7, node=1)
    nodes = (
        [done("failed", cause("fabric", 5, secondary=True))],
        [done("failed", first)],
        [done("failed", cause("node", 8))],
    )

    assert report(*nodes).outcome().cause == first


def test_the_first_of_secondary_causes_is_taken_when_there_are_no_others() -> None:
    first = cause("fabric", 5, secondary=True)

    assert (
        report([done("failed", cause("fabric", 6, secondary=True))], [done("failed", first)]).outcome().cause == first
    )


def test_a_node_that_exited_without_a_result_is_a_cause_with_its_last_lines() -> None:
    made = report(RUNNING, [*RUNNING, done("failed", cause("fabric", 200, secondary=True))])
    made.add(0, Foreign(b"slurmstepd: error: Detected 1 oom-kill event"))

    outcome = made.outcome(("ended", "ended"))

    assert outcome.state == "failed"
    assert outcome.cause is not None
    assert outcome.cause["class"] == "node"
    assert "the agent on host h exited without reporting a result" in outcome.cause["message"]
    assert "oom-kill" in outcome.cause["message"]


def test_what_another_node_has_measured_of_a_node_that_was_ended_afterwards_is_the_cause() -> None:
    missed = cause("node", 300.0, message="no sign of node 1 for 20 s", host=None, node=1, rank=None)
    nodes: list[list[Sent]] = [[*RUNNING, done("failed", missed)], RUNNING]

    found = report(*nodes).outcome(("ended", "ended")).cause
    assert found is not None
    assert (found["message"], found["node"]) == ("no sign of node 1 for 20 s", 1)

    known = (
        report(*nodes)
        .outcome(("ended", "ended"), causes={1: {"class": "node", "message": "killed for its memory"}})
        .cause
    )
    assert known is not None
    assert known["message"] == "killed for its memory", "what the cluster knows comes first"


def test_a_node_that_was_cancelled_because_another_vanished_is_not_the_cause() -> None:
    swept = [*RUNNING, done("cancelled", cause("cancelled", 101))]

    assert report(RUNNING, swept).outcome(("ended", "ended")).state == "failed"


def test_nodes_that_vanish_after_a_request_to_cancel_are_cancelled() -> None:
    assert report(RUNNING, []).outcome(("ended", "ended"), cancel_requested=1.0).state == "cancelled"
    assert report(RUNNING).outcome(("running",), cancel_requested=1.0).state == "stopping"


def test_a_failure_before_the_request_to_cancel_stays_the_cause() -> None:
    made = report([done("failed", cause("user_code", 5))], [done("cancelled", cause("cancelled", 9))])

    assert made.outcome(cancel_requested=8.0).state == "failed"


def test_an_elastic_run_succeeds_with_as_many_nodes_as_it_needs() -> None:
    nodes = [done("success")], [done("failed", cause("node", 5))], [STARTED]

    assert report(*nodes, min_nodes=1).outcome(("ended",) * 3).state == "success"
    assert report(*nodes, min_nodes=2).outcome(("ended",) * 3).state == "failed"


EXITED: Sent = ("worker_exited", {"rank": 0, "local_rank": 0, "round": 0, "exit_code": 0})
ONE: list[Sent] = [STARTED, ("rendezvous", {"ranks": [0]}), ("worker_started", {"rank": 0}), EXITED]
"""A node whose only worker has succeeded."""

KILLED: Sent = ("failure", {"cause": cause("killed", 5, node=1)})


def elastic(*nodes: list[Sent]) -> RunReport:
    made = report(*nodes, min_nodes=2)
    made.elastic = True
    return made


def test_a_node_that_is_lost_after_it_has_finished_ends_no_elastic_run() -> None:
    works = [STARTED, ("rendezvous", {"ranks": [0]}), ("worker_started", {"rank": 0})]

    assert elastic(works, [*ONE, KILLED]).outcome(("running", "ended")).state == "running"
    assert elastic([*ONE, done("success")], [*ONE, KILLED]).outcome(("ended",) * 2).state == "success"


def test_a_failure_after_that_is_the_cause() -> None:
    failed = cause("user_code", 9)

    outcome = elastic([*RUNNING, done("failed", failed)], [*ONE, KILLED]).outcome(("ended",) * 2)

    assert (outcome.state, outcome.cause) == ("failed", failed)


@pytest.mark.parametrize("first", [[STARTED], [STARTED, *ONE[1:3]]], ids=["not needed", "ended by us"])
def test_the_success_of_a_node_without_workers_that_have_succeeded_proves_nothing(first: list[Sent]) -> None:
    """Such a node has learnt that the run is over, and may not have learnt how."""
    assert elastic([*first, done("success")], [*ONE, KILLED]).outcome(("ended",) * 2).state == "failed"


@pytest.mark.parametrize(
    "more",
    [
        [("rendezvous", {"ranks": [0]})],
        [("worker_exited", {"local_rank": 0, "round": 1, "signal": "SIGTERM", "stopped": True})],
        [("agent_started", {"attempt": 1})],
    ],
    ids=["next round", "end of the next round", "next attempt"],
)
def test_a_node_that_works_again_has_not_finished(more: list[Sent]) -> None:
    assert not elastic([*ONE, *more]).nodes[0].finished


def test_a_rank_in_its_debugger_is_reported_until_it_exits() -> None:
    said: list[Sent] = [
        *RUNNING,
        ("debugger", {"rank": 1, "pid": 7, "message": "ValueError: x"}),
        ("worker_exited", {"pid": 6}),
    ]
    assert report(said).outcome(detail="RUNNING").detail == "rank 1 stopped in the debugger: ValueError: x"
    assert report([*said, ("worker_exited", {"pid": 7})]).outcome(detail="RUNNING").detail == "RUNNING"


def test_foreign_and_odd_events_do_no_harm() -> None:
    made = report(
        [("rendezvous", {"ranks": 5}), ("nonsense", {}), ("failure", {"cause": "x"}), ("done", {}), ("heartbeat", {})]
    )
    made.add(99, Event("done", {}))

    assert made.outcome().state == "failed"


def submitted(tmp_path: Path) -> records.Run:
    run = make(tmp_path, "train-20250101-000000-abcd", result=None)
    return records.record_handle(run, {"run_dir": str(run.path)})


def test_a_big_stream_is_judged_by_its_ends(tmp_path: Path) -> None:
    run = submitted(tmp_path)
    path = run.stream_path(0)
    path.parent.mkdir(parents=True)
    rendezvous = {"ranks": [0], "master_addr": "a", "master_port": 1}
    with path.open("wb") as file:
        file.write(protocol.encode_event("agent_started", 0, host="box"))
        file.write(protocol.encode_event("rendezvous", 0, **rendezvous))
        file.write(protocol.LineTagger(0, 0, "stdout").feed(b"x" * 200 + b"\n") * 5000)
        file.seek(10**9)  # a sparse file: reading all of it would take far too long
        file.write(b"\n" + protocol.LineTagger(0, 0, "stderr").feed(b"last words\n" * 2))
        file.write(protocol.encode_event("done", 0, result="timeout", cause=cause("timeout", 5)))

    outcome = status.observe(run)

    assert (outcome.state, outcome.nodes[0].host, outcome.nodes[0].ranks) == ("timeout", "box", (0,))
    assert status.last_lines(path, 0) == ["last words"] * 2
    assert run.result == outcome.to_json()


def test_a_cause_with_unknown_nested_fields_spoils_neither_listing_nor_result(tmp_path: Path) -> None:
    """600 nested lists are valid JSON, and too deep to be copied."""
    run = submitted(tmp_path)
    path = run.stream_path(0)
    path.parent.mkdir(parents=True)
    deep = b"[" * 600 + b"]" * 600
    why = b'{"class":"user_code","message":"no","time":5,"host":%b,"more":%b}' % (deep, deep)
    path.write_bytes(
        b'{"event":"agent_started","time":1,"node":0,"host":"box","x":%b}\n' % deep
        + b'{"event":"done","time":6,"node":0,"result":"failed","cause":%b}\n' % why
    )

    outcome = status.observe(run)

    assert (outcome.state, outcome.cause) == ("failed", {"class": "user_code", "message": "no", "time": 5})
    assert run.result == outcome.to_json()
