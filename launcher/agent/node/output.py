"""The output of this node's workers, read from pipes and terminals into the agent stream as fast as that takes it."""

from __future__ import annotations

import contextlib
import os
import selectors
from typing import TYPE_CHECKING, Callable, Dict, List, Optional

from ..stream.output import PART_AFTER_S, Pipe, pipes
from ..stream.writer import Writer
from .place import Place

if TYPE_CHECKING:
    from ..messages import LentTerminal, StartedWorker
    from ..terminal.relay import Terminal

_LOOK_AT_ROOM_S = 0.1
_DRAINED_BLOCKS = 32


class Output:
    """All open pipes, and the terminals by the pids of their workers."""

    def __init__(
        self, place: Place, out: Writer, selector: selectors.BaseSelector, signal_group: Callable[[int, int], None]
    ) -> None:
        """`signal_group` signals a rank's process group."""
        self._place, self._out, self._selector, self._signal_group = place, out, selector, signal_group
        self._pipes: Dict[int, Pipe] = {}
        self._terminals: Dict[int, Terminal] = {}
        """Empty if the launcher has no terminal."""

        self._leaving: List[Terminal] = []
        """Those of workers that have exited, whose clients have not read everything."""

        self.reads = 0
        """How often a pipe has been read."""

        self._reads = True
        self._round = -1
        self._silent = False
        """Whether no worker of the round has written anything."""

    def open(self, about: StartedWorker, fds: List[int], lent: Optional[LentTerminal]) -> Dict[str, Pipe]:
        """Start reading from a new worker; `lent`: its share of the launcher's terminal or stdin."""
        if about["round"] != self._round:
            self._round, self._silent = about["round"], True
        output = self._lend(about, fds, lent) if lent else pipes(fds, self._place.node_rank, about["rank"])
        for pipe in output.values():
            self._pipes[pipe.fd] = pipe
            self._watch(pipe)
        return output

    def _lend(self, about: StartedWorker, fds: List[int], lent: LentTerminal) -> Dict[str, Pipe]:
        from ..terminal.relay import Loop, lend  # few runs have a terminal

        for before in self._leaving:
            before.part()  # what it shows comes before what the next worker of that rank writes
        loop = Loop(self._selector, self._out, self._out.event, self._watch, self._signal_group)
        terminal, output = lend(lent, fds, self._place.node_rank, about["rank"], self._place.scratch.path, loop)
        if terminal is not None:
            self._terminals[about["pid"]] = terminal
        return output

    def close(self, pid: int, output: Dict[str, Pipe]) -> None:
        """Read what is left of a worker that has exited, and close its terminal."""
        self.drain(output)
        if pid in self._terminals:
            self._close(self._terminals.pop(pid))
        for pipe in output.values():
            self._out.rank_ended(pipe.tag)

    def _close(self, terminal: Terminal) -> None:
        terminal.close()
        self._leaving += [terminal] if terminal.connected else []

    def drain(self, output: Dict[str, Pipe]) -> None:
        """Read what a worker has written so far."""
        for pipe in output.values():
            for _ in range(_DRAINED_BLOCKS):  # all that fits into a pipe, even if others keep writing to it
                if pipe.ended or pipe.fd not in self._pipes or not pipe.read(self._out):
                    break
            if self._silent and pipe.begun:
                self._begin(pipe)
            if pipe.ended and pipe.fd in self._pipes:
                self._read(pipe)

    def attend(self, now: float, looked: float, *, holds: bool) -> None:
        """Call this once per turn of the loop, which began to read at `looked`. `holds`: nothing may be lost."""
        for terminal in (*self._terminals.values(), *self._leaving):
            terminal.look(now)
        self._leaving = [terminal for terminal in self._leaving if terminal.connected]
        for pipe in self._pipes.values() if self._reads else ():  # else the rest may be there, unread
            pipe.flush_part(self._out, looked)  # a line read in part in this turn may be complete by now
        self._out.flush()
        self._hold_back(holds=holds)

    def patience(self, now: float) -> float:
        """Seconds until `attend` must be called again."""
        until = [terminal.patience(now) for terminal in (*self._terminals.values(), *self._leaving)]
        if any(pipe.waits for pipe in self._pipes.values()):
            until.append(PART_AFTER_S)
        if not self._reads:
            until.append(_LOOK_AT_ROOM_S)
        return min(until, default=float("inf"))

    def go_on(self) -> None:
        """Resume suspended workers, as all are about to be ended."""
        for terminal in self._terminals.values():
            terminal.go_on()

    def finish(self) -> None:
        """Read what is left, once all processes have exited."""
        for pipe in list(self._pipes.values()):
            while pipe.read(self._out):
                self._out.flush()
            self._out.rank_ended(pipe.tag)
        for terminal in self._terminals.values():
            self._close(terminal)
        for terminal in self._leaving:
            terminal.part()

    def _hold_back(self, *, holds: bool) -> None:
        """Stop reading the pipes while the stream is blocked; without `holds`, output is lost instead."""
        self._out.holds = holds
        reads = not self._out.must_wait(waits=not self._reads)
        if reads != self._reads:
            self._reads = reads
            for pipe in self._pipes.values():
                self._watch(pipe)

    def _watch(self, pipe: Pipe) -> None:
        """Start or stop reading from a pipe."""
        if self._pipes.get(pipe.fd) is not pipe:
            return
        with contextlib.suppress(KeyError):
            self._selector.unregister(pipe.fd)
        if self._reads and not pipe.held:
            self._selector.register(pipe.fd, selectors.EVENT_READ, lambda: self._read(pipe))

    def _read(self, pipe: Pipe) -> None:
        if self._pipes.get(pipe.fd) is not pipe:
            return
        self.reads += 1
        pipe.read(self._out)
        if self._silent and pipe.begun:
            self._begin(pipe)
        if pipe.ended:
            with contextlib.suppress(KeyError):  # it was not being read
                self._selector.unregister(pipe.fd)
            del self._pipes[pipe.fd]
            os.close(pipe.fd)
            self._out.rank_ended(pipe.tag)  # processes that its worker left behind may have written later

    def _begin(self, pipe: Pipe) -> None:
        """Report the first line of the round: until then, its workers were starting."""
        self._silent = False
        self._out.event("first_line", rank=pipe.rank, round=self._round)
