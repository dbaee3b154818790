"""The stacks of all nodes, asked for over the run's store: by a watchdog that hears nothing, or after a timeout.

Each node publishes whether it is quiet. Node 0 asks all nodes for their stacks once all are, twice with a pause, and
gives both answers to its agent, which decides. Any node may ask.
"""

from __future__ import annotations

import json
import queue
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from ..job import Job
from ..store.interface import Store

if TYPE_CHECKING:
    from ..hang_messages import AgentToGroup, GroupToAgent

ASK = "stacks/ask"
"""Key with the number of the last request."""

GATHER_S = 6.0
"""How long all nodes may take to answer; some need py-spy."""

_LOOK_S, _AGAIN_S = 1.0, 30.0
_GROWS = 2.0
_AT_ONCE = 4


class Hangs:
    """This node's part, called by the thread that watches the other nodes."""

    def __init__(self, job: Job, node_rank: int) -> None:
        self.send: Callable[[GroupToAgent], object] = lambda _: None
        """Sends to the agent."""

        self.wake: Callable[[], object] = lambda: None
        """Wakes the thread that calls `attend`."""

        self._job, self._node = job, node_rank
        self._heard: queue.Queue[AgentToGroup] = queue.Queue()
        self._answered = 0
        self._quiet = False
        self._samples: List[List[Dict[str, Any]]] = []
        self._gathering: Optional[Gathering] = None
        self._next_at = self._patience_s = 0.0

    def hear(self, message: AgentToGroup) -> None:
        """Take a message of the agent, in any thread."""
        self._heard.put(message)
        self.wake()

    def attend(self, store: Store, asked: Optional[bytes]) -> None:
        """Do what is due. `asked`: the value of `ASK`."""
        while not self._heard.empty():
            self._publish(store, self._heard.get())
        number = int(asked or b"0")
        for each in range(max(self._answered, number - _AT_ONCE) + 1, number + 1):  # several nodes may ask at once
            self.send({"stacks_asked": each})
        self._answered = max(self._answered, number)
        if self._node == 0 and self._job.hang_after_s:
            self._watch(store, time.monotonic())

    def _publish(self, store: Store, message: AgentToGroup) -> None:
        if "quiet" in message:
            self._quiet = message["quiet"]
            self._samples, self._gathering, self._patience_s = [], None, 0.0
            store.set(f"quiet/{self._node}", "1" if self._quiet else "0")
        else:
            answer = message["stacks"]
            store.set(f"stacks/{answer['number']}/{self._node}", json.dumps(answer))

    def _watch(self, store: Store, now: float) -> None:
        """On node 0: take two samples once all nodes are quiet, and again after twice the time."""
        if self._gathering is not None:
            if not self._gathering.is_over(store):
                return
            self._samples.append(self._gathering.answers)
            self._gathering = None
            if len(self._samples) == 2:
                self.send({"samples": self._samples, "between_s": self._pause_s})
                self._samples = []
                self._patience_s = max(self._job.hang_after_s or 0.0, self._patience_s * _GROWS)
            self._next_at = now + (self._patience_s if not self._samples else self._pause_s)
        elif now >= self._next_at:
            self._next_at = now + _LOOK_S
            if self._samples or (self._quiet and self._all_are_quiet(store)):
                self._gathering = Gathering(store, self._job.max_nodes)

    @property
    def _pause_s(self) -> float:
        """The time between two samples."""
        return min(_AGAIN_S, (self._job.hang_after_s or 0.0) / 4)

    def _all_are_quiet(self, store: Store) -> bool:
        told = store.peek([f"quiet/{node}" for node in range(self._job.max_nodes)])
        return all(each == b"1" for each in told if each is not None)


class Gathering:
    """One request to all nodes, and their answers."""

    def __init__(self, store: Store, nodes: int, limit_s: float = GATHER_S) -> None:
        self._number = store.add("stacks/requests", 1)
        store.set(ASK, str(self._number))
        self._answers: Dict[str, Optional[bytes]] = {f"stacks/{self._number}/{node}": None for node in range(nodes)}
        self._limit = time.monotonic() + limit_s

    @property
    def answers(self) -> List[Dict[str, Any]]:
        """What has been answered so far, in the order of the nodes."""
        return [json.loads(each) for each in self._answers.values() if each]

    def is_over(self, store: Store) -> bool:
        """Whether all nodes have answered, or have had the time to."""
        absent = [key for key, answer in self._answers.items() if answer is None]
        found = {key: answer for key, answer in zip(absent, store.peek(absent)) if answer is not None}
        if found:
            self._answers.update(found)
            store.multi_set(dict.fromkeys(found, ""))  # they may be large
        return len(found) == len(absent) or time.monotonic() > self._limit
