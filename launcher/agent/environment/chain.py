"""Node 0's part: which node gets the environment from which other one, and when all have it.

The nodes form a chain in the order in which they join. Each receives every byte once and sends it once, so 64 nodes
take as long as one, plus a piece per node. A node whose source is lost gets the one before that.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, List, Optional, Set

from ..named_tuple import NamedTuple
from .wire import LostError, Message, Wire

_HEARS_S = 86400.0
_TELL_S = 10.0


class Member(NamedTuple):
    """A node that has joined."""

    node: int
    host: str
    addresses: List[str]
    """None of node 0: it is asked where it was reached."""

    port: int


class Stop(NamedTuple):
    """Why the run cannot start."""

    message: str
    node: int
    host: str


class Chain:
    """The nodes that have joined."""

    def __init__(self, nodes: int, first: Member) -> None:
        """`nodes`: how many there will be."""
        self.digest = ""
        self._nodes = nodes
        self._order: List[Member] = [first]
        self._lost: Set[int] = set()
        self._here: Set[int] = set()
        """Nodes whose connections are open."""

        self._source: Dict[int, int] = {}
        self._done = 0
        self._over = False
        """Whether all are ready, or lost."""

        self._stop: Optional[Stop] = None
        self._changed = threading.Condition()

    # -- in the threads of connections --------------------------------------------------------------------------------

    def attend(self, wire: Wire, asked: Message) -> None:
        """One node, from the time it joins until all are ready. Raises `LostError`."""
        member = Member(int(asked["join"]), str(asked["host"]), list(asked["addresses"]), int(asked["port"]))
        with self._changed:
            self._here.add(member.node)
        try:
            self._wait(lambda: self.digest or self._over)
            wire.send(digest=self.digest)
            if self.digest:
                while "source" in (told := wire.receive(_HEARS_S)):
                    wire.send(**self._next(member, told["source"]))
                self._settle(Stop(str(told["failed"]), member.node, member.host) if "failed" in told else None)
            self._wait(lambda: self._over)
            wire.send(**({"stop": self._stop._asdict()} if self._stop else {"go": True}))
        except (LostError, KeyError, TypeError, ValueError):
            with self._changed:
                self._lost.add(member.node)
            text = f"{member.host} was lost while the environment was brought to it"
            self._settle(Stop(text, member.node, member.host))
        finally:
            with self._changed:
                self._here.discard(member.node)
                self._changed.notify_all()

    def _next(self, member: Member, lost: Optional[int]) -> Dict[str, Any]:
        """From which node this one gets the environment; `lost`: the one that it could not get it from."""
        with self._changed:
            ahead = self._order
            if member.node not in self._source:
                self._order = [*self._order, member]
            elif lost == self._order[0].node:
                return {"none": True}
            else:
                now = self._source[member.node]
                ahead = self._order[: next(at for at, each in enumerate(self._order) if each.node == now)]
            found = [each for each in ahead if each.node not in self._lost][-1]
            self._source[member.node] = found.node
            return {"from": found._asdict()}

    def _settle(self, stop: Optional[Stop]) -> None:
        with self._changed:
            self._done += 1
            self._stop = self._stop or stop
            self._over = self._over or self._done == self._nodes
            self._changed.notify_all()

    def _wait(self, met: Callable[[], object], limit_s: Optional[float] = None) -> None:
        with self._changed:
            self._changed.wait_for(met, limit_s)

    # -- on node 0 itself ---------------------------------------------------------------------------------------------

    def begin(self, digest: str) -> None:
        """The environment is known."""
        with self._changed:
            self.digest = digest
            self._changed.notify_all()

    def settle(self, stop: Optional[Stop], limit_s: float) -> Optional[Stop]:
        """Node 0 has the environment, or has failed; waits until all are ready, and know whether the run can start.

        Nodes have `limit_s` to join.
        """
        with self._changed:
            self._stop = stop or self._stop
            self._over = bool(stop and not self.digest)
        self._settle(stop)
        self._wait(lambda: self._over, limit_s)
        with self._changed:
            missing = self._nodes - len(self._order)
            if missing and not self._over:
                self._stop = self._stop or Stop(
                    f"{missing} of {self._nodes} nodes have not joined within {limit_s:.0f} s", 0, ""
                )
                self._over = True
                self._changed.notify_all()
        self._wait(lambda: self._over)
        self._wait(lambda: not self._here, _TELL_S)
        return self._stop
