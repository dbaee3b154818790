"""The outcome of a run that a scheduler stops, starts again or ends."""

from __future__ import annotations

import pytest

from launcher.agent.protocol import Event
from launcher.runs.outcome import RunReport
from tests.runs.reports import RUNNING, STOPPED, Sent, again, cause, done, report


@pytest.mark.parametrize(
    ("node", "answer", "state"),
    [
        ([*RUNNING, STOPPED], "running", "stopping"),
        ([*RUNNING, STOPPED], "pending", "pending"),
        ([*RUNNING, STOPPED], "ended", "cancelled"),
        ([*RUNNING, done("failed", cause("node", 5))], "pending", "pending"),
        ([*RUNNING, done("failed", cause("user_code", 5))], "running", "failed"),
        ([*RUNNING, done("success")], "running", "success"),
        ([*RUNNING, STOPPED, ("agent_started", {"attempt": 1})], "running", "starting"),
        (
            [*RUNNING, STOPPED, ("agent_started", {"attempt": 1}), ("done", {"result": "success", "attempt": 1})],
            "running",
            "success",
        ),
    ],
)
def test_a_node_that_a_scheduler_stopped_may_start_again(node: list[Sent], answer: str, state: str) -> None:
    assert again(node).outcome((answer,)).state == state


def test_a_cancelled_run_does_not_wait_for_the_scheduler() -> None:
    assert again([*RUNNING, STOPPED]).outcome(("pending",), cancel_requested=1.0).state == "cancelled"


def test_a_later_attempt_counts_even_if_its_first_events_were_not_read() -> None:
    node = [*RUNNING, done("failed", cause("user_code", 5)), ("heartbeat", {"workers": 2, "attempt": 2})]
    outcome = again(node).outcome(("running",))

    assert (outcome.state, outcome.cause, outcome.attempt) == ("running", None, 2)


@pytest.mark.parametrize("kind", ["preempted", "timeout", "out_of_memory", "node"])
def test_the_cluster_knows_why_an_agent_was_stopped(kind: str) -> None:
    told = {0: {"class": kind, "message": "Slurm: so"}}
    state = kind if kind in ("preempted", "timeout") else "failed"

    for node in ([*RUNNING, STOPPED], RUNNING):
        outcome = report(node).outcome(("ended",), causes=told)
        assert outcome.state == state
        assert outcome.cause is not None
        assert outcome.cause["message"] == "Slurm: so"


def test_a_worker_that_failed_by_itself_stays_the_cause() -> None:
    told = {0: {"class": "preempted", "message": "Slurm: so"}}

    assert report([done("failed", cause("user_code", 5))]).outcome(("ended",), causes=told).state == "failed"


def test_events_from_before_a_requeue_do_not_count() -> None:
    made = RunReport(["h"], attempt=2)
    for record in (done("success"), ("agent_started", {"attempt": 1}), ("done", {"result": "failed", "attempt": 1})):
        made.add(0, Event(record[0], {"time": 1.0, **record[1]}))

    assert made.outcome(("running",)).state == "starting"


def test_a_run_that_the_cluster_has_recorded_as_successful_succeeds_without_its_logs() -> None:
    """Pods are removed with their nodes, and their logs with them."""
    told = {1: {"class": "cancelled", "message": "the pod ended with the run"}}
    made = report([*RUNNING, done("preempted", cause("preempted", 5))], [])
    made.may_start_again = True

    assert made.outcome(("ended", "ended"), causes=told).state == "preempted"
    assert made.outcome(("ended", "ended"), causes=told, succeeded=True).state == "success"
    assert made.outcome(("ended", "ended"), causes=told, succeeded=True).cause is None


def test_the_success_of_one_node_counts_for_all_only_where_nodes_succeed_together() -> None:
    ends = ([*RUNNING, done("success")], RUNNING)
    for made, state in ((report(*ends), "failed"), (report(*ends), "success")):
        made.may_start_again = state == "success"
        assert made.outcome(("ended", "ended")).state == state
    elastic = report([*RUNNING, done("success")], RUNNING, RUNNING, min_nodes=2)
    elastic.may_start_again = True
    assert elastic.outcome(("ended",) * 3).state == "failed"


def test_a_cancel_while_a_lost_run_starts_again_cancels_it() -> None:
    made = report([*RUNNING, done("lost", cause("killed", 100.5, node=1))], RUNNING)
    made.may_start_again = True
    made.add(1, Event("agent_started", {"time": 101.0, "attempt": 1, "host": "h"}))
    made.add(1, Event("done", {"time": 103.0, "attempt": 1, "result": "preempted", "cause": cause("preempted", 103.0)}))

    found = made.outcome(("ended", "ended"), cancel_requested=102.0)

    assert (found.state, found.exit_code) == ("cancelled", 130)


def test_a_node_that_was_taken_back_when_it_was_done_says_nothing_about_the_others() -> None:
    left: Sent = ("done", {"result": "success", "early": True})
    failed = [*RUNNING, done("failed", cause("user_code", 5))]
    for others, state in ((failed, "failed"), (RUNNING, "failed"), ([*RUNNING, done("success")], "success")):
        made = report(others, [*RUNNING, left])
        made.may_start_again = True
        assert made.outcome(("ended", "ended")).state == state
        assert not made.comes_too_late
