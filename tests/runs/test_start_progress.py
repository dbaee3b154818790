"""How far the start of a run is, from its agents' events."""

from __future__ import annotations

from launcher.runs.start_progress import Progress, StartProgress


def test_nodes_start_import_and_meet_until_a_worker_runs() -> None:
    start = StartProgress(2)
    seen = [start.present()]
    told = [
        (0, "agent_started"),
        (0, "host_facts"),
        (1, "agent_started"),
        (1, "heartbeat"),
        (1, "host_facts"),
        (0, "worker_started"),
    ]
    for node, event in told:
        start.heard(node, event)
        seen.append(start.present())

    assert seen == [
        Progress("queued", 0, 2),
        Progress("starting", 1, 2),
        Progress("starting", 1, 2),
        Progress("importing", 1, 2),
        Progress("importing", 1, 2),
        Progress("meeting", 0, 2),
        None,
    ]


def test_a_node_that_starts_again_is_waited_for_and_one_that_ends_is_not() -> None:
    start = StartProgress(1)
    for event in ("agent_started", "host_facts", "worker_started", "agent_started"):
        start.heard(0, event)
    assert start.present() == Progress("importing", 0, 1)
    assert start.heard(0, "failure")
    assert start.present() is None
    assert not start.heard(0, "heartbeat")
