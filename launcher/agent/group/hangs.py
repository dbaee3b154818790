"""The stacks of all nodes, asked for over the run's store: by a watchdog that hears nothing, or after a timeout.

Each node publishes whether it is quiet. Node 0 asks all nodes for their stacks once all are, twice with a pause, and
gives both answers to its agent, which decides. Any node may ask.
"""

from __future__ import annotations

import json
import queue
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from ..job import Job
from ..store.interface import Store
from .sampling import Sampling, as_text

if TYPE_CHECKING:
    from ..contracts._contract import Variable
    from ..flight.recorder import Recorder
    from ..hang_messages import AgentToGroup, GroupToAgent

ACT = "stacks/act"
"""Key with what node 0 has decided about a hang: the node of that rank has it fail."""

_AT_ONCE = 4
_LOST = b"lost"


class Hangs:
    """This node's part, called by the thread that watches the other nodes."""

    def __init__(self, job: Job, node_rank: int) -> None:
        self.send: Callable[[GroupToAgent], object] = lambda _: None
        """Sends to the agent."""

        self.recorder: Optional[Recorder] = None
        """The flight recorder of this node's workers in this round."""

        self.recorders: List[Variable] = []
        """The variables that switch it on."""

        self.wake: Callable[[], object] = lambda: None
        """Wakes the thread that calls `attend`."""

        self._job, self._node = job, node_rank
        self._round = (-1, job.max_nodes, node_rank)
        """Its number, how many nodes have to be quiet, and this node's place in it; none has begun yet."""

        self._heard: queue.Queue[AgentToGroup] = queue.Queue()
        self._answered = 0
        self._acted: Optional[bytes] = b"unknown"
        self._quiet = False
        self._sampling = Sampling(job.hang_after_s or 0.0)

    def begin(self, number: int, nodes: int, place: int) -> None:
        """A round begins, on this many nodes of this role: publish that this one takes part, in that place."""
        self._round = (number, self._job.max_nodes if self._job.roles else nodes, place)
        self.hear({"quiet": self._quiet})

    def lose(self, store: Store, node: int) -> None:
        """Expect nothing more of a node that the run, of a fixed number of them, continues without."""
        store.set(self._key(0, node), f"{_LOST.decode()} {node}")

    def members(self, store: Store) -> List[int]:
        """The nodes of this round, as far as they have begun it, without those that are lost."""
        if self._job.elastic:
            return sorted(self._told(store))
        told = self._told(store) if self._job.roles else {}
        return [node for node in range(self._job.max_nodes) if told.get(node) != _LOST]

    def _told(self, store: Store) -> Dict[int, bytes]:
        """By node, whether it is quiet. In an elastic run lost nodes count no more: each round has keys of its own."""
        number = self._round[0]
        found = store.peek([self._key(number, place) for place in range(self._job.max_nodes)])
        told = [each.split() for each in found if each is not None]
        return {int(node): quiet for quiet, node in told}

    def _key(self, number: int, place: int) -> str:
        """A node that takes the place of another one may have any number, so an elastic run has keys by place."""
        return f"quiet/{number}/{place}" if self._job.elastic else f"quiet/{place}"

    def hear(self, message: AgentToGroup) -> None:
        """Take a message of the agent, in any thread."""
        self._heard.put(message)
        self.wake()

    def attend(self, store: Store, asked: Optional[bytes], act: Optional[bytes]) -> None:
        """Do what is due. `asked` and `act`: the values of `ASK` and `ACT`."""
        while not self._heard.empty():
            self._publish(store, self._heard.get())
        text, _, dumps = (asked or b"0").partition(b" ")
        number, recorder = int(text), self._recording() if dumps else None
        for each in range(max(self._answered, number - _AT_ONCE) + 1, number + 1):  # several nodes may ask at once
            self.send({"stacks_asked": each, "recorder": recorder})
        self._answered = max(self._answered, number)
        if act and self._acted not in (act, b"unknown"):  # what was decided before this node came is over
            self.send({"act": json.loads(act), "recorder": self._recording()})
        self._acted = act
        if self._node == 0 and self._job.hang_after_s:
            found = self._sampling.look(store, lambda: self._quiet and self._all_are_quiet(store), self.members)
            if found:
                self.send(found)

    def patience_s(self) -> float:
        """How soon `attend` is to be called again."""
        if self._node or not self._job.hang_after_s:
            return float("inf")
        return self._sampling.patience_s if self._quiet else float("inf")

    def _recording(self) -> Optional[Dict[str, Any]]:
        return self.recorder._asdict() if self.recorder else None

    def _publish(self, store: Store, message: AgentToGroup) -> None:
        if "quiet" in message:
            self._quiet = message["quiet"]
            self._sampling = Sampling(self._job.hang_after_s or 0.0)
            number, _, place = self._round  # read once, as another thread begins rounds
            key = self._key(number, place if self._job.elastic else self._node)
            store.set(key, f"{int(self._quiet)} {self._node}")
        elif "act" in message:
            store.set(ACT, json.dumps(message["act"]))
        else:
            answer = message["stacks"]
            store.set(f"stacks/{answer['number']}/{self._node}", as_text(answer))

    def _all_are_quiet(self, store: Store) -> bool:
        told = self._told(store)
        return len(told) >= self._round[1] and all(each in (b"1", _LOST) for each in told.values())
