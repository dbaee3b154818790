"""What the events of a run's nodes tell about its past."""

from __future__ import annotations

from launcher.agent.protocol import Event
from launcher.runs.history import History


def test_a_node_that_joined_in_a_later_round_has_its_own_start_up_and_not_that_of_a_restart() -> None:
    history = History(["a", "b"], None)
    for node, name, when, number in (
        (0, "agent_started", 1.0, None), (0, "host_facts", 2.0, None), (0, "rendezvous", 3.0, 0),
        (1, "agent_started", 11.0, None), (1, "host_facts", 12.0, None),
        (0, "rendezvous", 13.0, 1), (1, "rendezvous", 13.5, 1), (1, "worker_started", 14.0, 1),
        (1, "rendezvous", 20.0, 2), (1, "worker_started", 21.0, 2), (1, "first_line", 22.0, 2),
    ):  # fmt: skip
        history.add(node, Event(name, {"time": when, **({} if number is None else {"round": number})}))

    ends = {start["node"]: [phase["end"] for phase in start["phases"]] for start in history.starts()}

    assert ends[0][-1] == 3.0
    assert ends[1][-2:] == [13.5, 14.0]


def test_a_round_that_goes_on_has_no_end_of_its_own() -> None:
    history = History(["a"], None)
    history.add(0, Event("agent_started", {"time": 1.0}))
    history.add(0, Event("rendezvous", {"time": 3.0, "round": 0, "world_size": 8}))

    assert [history.rounds(now)[0]["end"] for now in (5.0, 5000.0)] == [5.0, 5000.0]


def test_of_very_many_moments_the_first_and_the_last_ones_are_kept() -> None:
    """Those of one node come before those of the other, as when streams are read one after the other."""
    history = History(["a", "b"], None)
    history.add(0, Event("agent_started", {"time": 1.0}))
    history.add(0, Event("failure", {"time": 9998.0, "cause": {"message": "boom"}}))
    history.add(0, Event("done", {"time": 9999.0, "result": "failed"}))
    for number in range(5000):
        history.add(1, Event("warning", {"time": 10.0 + number, "message": f"warning {number}"}))

    texts = [moment["text"] for moment in history.moments()]

    assert len(texts) == 1000
    assert texts[:2] == ["agents start", "warning 0"]
    assert texts[-3:] == ["warning 4999", "boom", "ended: failed"]
