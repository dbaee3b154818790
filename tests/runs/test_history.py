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
