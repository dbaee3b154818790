"""A node's part: joins at node 0, and gets what it lacks from the node that node 0 names."""

from __future__ import annotations

from typing import Any, Callable, List, Optional

from ..named_tuple import NamedTuple
from ..network import routes
from .chain import Stop
from .manifest import BringError, digest_of
from .serving import NOT_HERE, ranges
from .shelf import Shelf
from .wire import Limits, LostError, Wire

_TRIES = 3
"""How often a source may send damaged pieces before another one is asked."""

_MAX_LIST_BYTES = 1 << 30
_LONG_S = 86400.0


class StoppedError(BringError):
    """The run cannot start, and not because of this node."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(f"node {stop.node}: {stop.message}")
        self.stop = stop


class Self(NamedTuple):
    """How this node joins."""

    node: int
    host: str
    addresses: List[str]
    port: int
    key: str
    limits: Limits


class Fetching:
    """This node's connection to node 0, and its source."""

    def __init__(self, me: Self, address: str, port: int) -> None:
        """Join. Raises `LostError`, or `StoppedError` if there is nothing to get."""
        self.damaged: List[str] = []
        """Which sources sent damaged pieces."""

        self._me, self._first = me, address
        self._wire = Wire.to(address, port, me.key, me.limits.host_s)
        self._source: Optional[Wire] = None
        self._from, self._name = -1, ""
        self._wire.send(join=me.node, host=me.host, addresses=me.addresses, port=me.port)
        self.digest = str(self._wire.receive(me.limits.wait_s)["digest"])
        if not self.digest:
            raise StoppedError(Stop(**self._wire.receive(me.limits.patience_s)["stop"]))

    def manifest(self) -> bytes:
        """The list of files. Raises `BringError`."""

        def ask(source: Wire) -> bytes:
            source.send(ask="files")
            size = int(source.receive(self._me.limits.patience_s)["bytes"])
            if not 0 < size <= _MAX_LIST_BYTES:
                raise LostError("its list of files is too large")
            encoded = source.data(size, self._me.limits.patience_s)
            if digest_of(encoded) != self.digest:
                raise LostError("its list of files is damaged")
            return encoded

        return bytes(self._of_some(ask))

    def pieces(self, shelf: Shelf) -> None:
        """All pieces that are missing. Raises `BringError`."""

        def ask(source: Wire) -> None:
            for attempt in range(_TRIES):
                missing = shelf.lacking
                if not missing:
                    return
                source.send(ask="pieces", pieces=ranges(missing), again=attempt > 0)
                whole = [self._piece(source, shelf) for _ in missing]
                if not all(whole):
                    self.damaged.append(self._name)
            if shelf.lacking:
                raise LostError("it sends damaged data")

        self._of_some(ask)

    def _piece(self, source: Wire, shelf: Shelf) -> bool:
        index, size = source.announced(self._me.limits.patience_s)
        if size == NOT_HERE or index >= len(shelf.pieces) or size != shelf.pieces[index].size:
            raise LostError("it does not have all of it")
        return shelf.put(index, source.data(size, self._me.limits.patience_s))

    def _of_some(self, ask: Callable[[Wire], Any]) -> Any:
        """Ask the source; if it cannot answer, the one that node 0 names next."""
        while True:
            try:
                return ask(self._source or self._next(None))
            except LostError as error:
                if self._source is not None:
                    self._source.close()
                self._next(self._from, str(error))

    def _next(self, lost: Optional[int], why: str = "") -> Wire:
        """A connection to the first source that can be reached."""
        while True:
            try:
                self._wire.send(source=lost)
                told = self._wire.receive(self._me.limits.patience_s)
            except LostError as error:
                raise BringError(f"node 0 was lost while the environment was brought here: {error}") from error
            if "from" not in told:
                raise BringError(f"the environment could not be brought here from node {lost}: {why}")
            about = told["from"]
            self._from, self._name = int(about["node"]), f"node {about['node']} ({about['host']})"
            addresses = [str(each) for each in about["addresses"]] or [self._first]
            try:
                reached = routes.first_reachable(addresses, int(about["port"])) or addresses[0]
                self._source = Wire.to(reached, int(about["port"]), self._me.key, self._me.limits.host_s)
            except LostError as error:
                lost, why = self._from, str(error)
            else:
                return self._source

    def finish(self, problem: str = "") -> None:
        """Say that this node is ready, or why not, and wait for all others.

        Raises `StoppedError` if the run cannot start.
        """
        try:
            self._wire.send(**({"failed": problem} if problem else {"done": True}))
            told = self._wire.receive(_LONG_S)
        except LostError as error:
            raise BringError(f"node 0 was lost while it waited for other nodes: {error}") from error
        finally:
            if self._source is not None:
                self._source.close()
        if "stop" in told and int(told["stop"]["node"]) != self._me.node:
            raise StoppedError(Stop(**told["stop"]))
