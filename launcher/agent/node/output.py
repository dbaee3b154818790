"""What this node's workers write: their pipes and terminals, read into the agent stream as fast as that takes it."""

from __future__ import annotations

import contextlib
import os
import selectors
from typing import TYPE_CHECKING, Callable, Dict, List, Optional

from ..channel import Message
from ..stream.output import PART_AFTER_S, Pipe, pipes
from ..stream.writer import Writer
from .place import Place

if TYPE_CHECKING:
    from ..messages import StartedWorker
    from ..terminal.relay import Terminal

_LOOK_AT_ROOM_S = 0.1
_DRAINED_BLOCKS = 32


class Output:
    """All pipes that are open, and by the pids of their workers the terminals."""

    def __init__(
        self, place: Place, out: Writer, selector: selectors.BaseSelector, signal_group: Callable[[int, int], None]
    ) -> None:
        """`signal_group` signals a rank with the processes of its group."""
        self._place, self._out, self._selector, self._signal_group = place, out, selector, signal_group
        self._pipes: Dict[int, Pipe] = {}
        self._terminals: Dict[int, Terminal] = {}
        """None where the launcher has no terminal."""

        self._reads = True

    def open(self, about: StartedWorker, fds: List[int], lent: Optional[Message]) -> Dict[str, Pipe]:
        """Read from a new worker; `lent`: what it has of the launcher's terminal or stdin."""
        output = self._lend(about, fds, lent) if lent else pipes(fds, self._place.node_rank, about["rank"])
        for pipe in output.values():
            self._pipes[pipe.fd] = pipe
            self._watch(pipe)
        return output

    def _lend(self, about: StartedWorker, fds: List[int], lent: Message) -> Dict[str, Pipe]:
        from ..terminal.relay import Loop, lend  # few runs have one

        loop = Loop(self._selector, self._out, self._out.event, self._watch, self._signal_group)
        terminal, output = lend(lent, fds, self._place.node_rank, about["rank"], self._place.scratch.path, loop)
        if terminal is not None:
            self._terminals[about["pid"]] = terminal
        return output

    def close(self, pid: int, output: Dict[str, Pipe]) -> None:
        """That worker has exited."""
        self.drain(output)
        if pid in self._terminals:
            self._terminals.pop(pid).close()
        for pipe in output.values():
            self._out.rank_ended(pipe.tag)

    def drain(self, output: Dict[str, Pipe]) -> None:
        """Read what a worker has written until now."""
        for pipe in output.values():
            for _ in range(_DRAINED_BLOCKS):  # all that fits into a pipe, whoever else writes to it
                if pipe.ended or pipe.fd not in self._pipes or not pipe.read(self._out):
                    break
            if pipe.ended and pipe.fd in self._pipes:
                self._read(pipe)

    def attend(self, now: float, looked: float, *, holds: bool) -> None:
        """Once in each turn of the loop, which has begun to read at `looked`. `holds`: nothing is to be lost."""
        for terminal in self._terminals.values():
            terminal.look(now)
        for pipe in self._pipes.values():
            pipe.flush_part(self._out, looked)  # of what was read in this turn the rest may be there already
        self._out.flush()
        self._hold_back(holds=holds)

    def patience(self, now: float) -> float:
        """So many seconds until `attend` is to be called at the latest."""
        until = [terminal.patience(now) for terminal in self._terminals.values()]
        if any(pipe.waits for pipe in self._pipes.values()):
            until.append(PART_AFTER_S)
        if not self._reads:
            until.append(_LOOK_AT_ROOM_S)
        return min(until, default=float("inf"))

    def go_on(self) -> None:
        """The workers are to end, so none stays suspended."""
        for terminal in self._terminals.values():
            terminal.go_on()

    def finish(self) -> None:
        """All processes have ended: read what is left."""
        for pipe in list(self._pipes.values()):
            while pipe.read(self._out):
                self._out.flush()
            self._out.rank_ended(pipe.tag)
        for terminal in self._terminals.values():
            terminal.close()

    def _hold_back(self, *, holds: bool) -> None:
        """Leave what workers write in their pipes while the stream takes nothing; while they are to end, it is lost instead."""
        self._out.holds = holds
        reads = not self._out.must_wait(waits=not self._reads)
        if reads != self._reads:
            self._reads = reads
            for pipe in self._pipes.values():
                self._watch(pipe)

    def _watch(self, pipe: Pipe) -> None:
        """Read from it now, or do not."""
        if self._pipes.get(pipe.fd) is not pipe:
            return
        with contextlib.suppress(KeyError):
            self._selector.unregister(pipe.fd)
        if self._reads and not pipe.held:
            self._selector.register(pipe.fd, selectors.EVENT_READ, lambda: self._read(pipe))

    def _read(self, pipe: Pipe) -> None:
        if self._pipes.get(pipe.fd) is not pipe:
            return
        pipe.read(self._out)
        if pipe.ended:
            with contextlib.suppress(KeyError):  # it was not being read
                self._selector.unregister(pipe.fd)
            del self._pipes[pipe.fd]
            os.close(pipe.fd)
            self._out.rank_ended(pipe.tag)  # what its worker has left may have written since that ended
