"""The way between the launcher's terminal and that of one rank, whose agent has the other end (`launcher.agent.terminal`).

While a rank is attached, keys are passed on as they are typed and what it writes is shown to the byte: echo, lines and the like
are its own terminal's business, on its node. Only signals stay here, unless the rank reads raw keys or has the keyboard for
itself: Ctrl-C cancels the run even where no connection works. Whatever happens, our terminal is left as it was found.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent.frames import Connection
from launcher.errors import LaunchError
from launcher.terminal_modes import Modes
from launcher.terminal_size import SizeTeller

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from typing_extensions import Self

    from launcher.agent.channel import Message
    from launcher.proc import Bridge

_KEYS_BYTES = 4096
_UNSENT_BYTES = 64 * 1024
_LOOK_MS = 50
_YIELD_S = 2.0
_IDLE_MS = 1000
"""So often it is looked whether a loan is over: another one may have read the word that it is."""

_END_S = 10.0
_SETTLE_S = 3.0
"""A worker's end may be told so much later than its terminal's."""

_WORDS = {signal.SIGWINCH: b"w", signal.SIGCONT: b"c"}


class Terminal:
    """Ours, while entered: a rank's terminal is opened when it is there, and closed at its end."""

    def __init__(self, about: dict[str, Any], show: Callable[[int, bytes], object]) -> None:
        """`about`: what was lent (`terminal_modes.lent`); `show` writes bytes to one of our streams."""
        self.rank: int = about["rank"]
        self._interactive, self._show = bool(about["interactive"]), show
        self._modes = Modes(interactive=self._interactive)
        self._before: dict[int, Any] = {}
        self._wakeup = os.pipe()
        for fd in self._wakeup:
            os.set_blocking(fd, False)
        self._lend: Callable[[], _Loan] | None = None
        """Opens it, as long as its worker runs."""

        self._loan: _Loan | None = None
        self._attached: _Loan | None = None
        self._showing = self._again = False
        self._sizes = SizeTeller(about["size"], self._modes.size)
        self._on_terminal = (about["stdout"], about["stderr"])

    def __enter__(self) -> Self:
        handlers = {
            signal.SIGWINCH: self._wake,
            signal.SIGCONT: self._wake,
            signal.SIGTSTP: self._stop,
            signal.SIGQUIT: self._die,
        }
        for number, handler in handlers.items():
            if (before := signal.getsignal(number)) != signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leave()
        self._sizes.close(_YIELD_S)
        self._modes.restore(for_good=True)
        for number, before in self._before.items():
            signal.signal(number, before)

    def open(self, connect: Callable[[], Bridge], *, keyboard: bool) -> None:
        """A worker has begun whose terminal `connect` reaches."""
        self._leave()
        self._showing = False
        suspends = keyboard and not self._interactive  # else others wait for the rank
        how = {"keyboard": keyboard, "suspends": suspends}
        self._lend = partial(_Loan, connect, self._modes, self._wakeup[0], self._show, **how)
        self._loan = self._lend()

    def only_looks_on(self, connect: Callable[[], Bridge]) -> None:
        """A worker has begun that is shown by its stream: its terminal is told the size of ours."""
        self._sizes.tell_to(connect)

    def worker_ended(self) -> None:
        """Nobody is there to be reached any more."""
        self._lend = None
        self._sizes.tell_to(None)

    def _leave(self) -> None:
        """Have an end of the way to a worker that may have ended without a word."""
        if self._loan is not None and not self._loan.ended.is_set():
            self._loan.leave()
            self._tell(b"w")
            self._loan.ended.wait(_YIELD_S)

    def attached(self) -> None:
        """What comes before that in the rank's stream was shown: the rest comes to us."""
        if self._loan is not None:
            self._showing, self._attached = True, self._loan
            self._loan.begin.set()

    def detached(self) -> None:
        """What comes after that in its stream has not come to us; waits until the rest is shown."""
        if self._attached is not None:
            self._attached.ended.wait(_END_S)
        self._showing = False

    def shows(self, rank: int, *, stderr: bool) -> bool:
        """Whether what that rank writes there is shown by us, and not out of its stream."""
        return self._showing and rank == self.rank and self._on_terminal[stderr]

    def trouble(self) -> str:
        """Why there is no way to a worker that runs, told once; one that has broken is made again, and so where somebody asks."""
        if why := self._sizes.trouble(_SETTLE_S):
            return f"its terminal keeps its size: {why}"
        loan = self._loan
        if loan is None or self._lend is None or not loan.ended.is_set() or time.monotonic() < loan.ended_at + _SETTLE_S:
            return ""
        (why, loan.trouble), (again, self._again) = (loan.trouble, ""), (self._again, False)
        broken = bool(why) and loan.begin.is_set()
        if broken or again:
            self._loan = self._lend()
        goes_on = "connecting again" if broken else "the run goes on without it; Ctrl-Z, then fg, tries again"
        return f"{why}; {goes_on}" if why else ""

    # -- signals: handlers run in the main thread, the thread of a loan does what they ask for ---------------------------

    def _tell(self, word: bytes) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wakeup[1], word)

    def _wake(self, signum: int, _frame: FrameType | None) -> None:
        self._tell(_WORDS[signal.Signals(signum)])
        self._sizes.look()

    def _stop(self, _signum: int, _frame: FrameType | None) -> None:
        """Ctrl-Z: the rank stops, once it is reached, our terminal is as it was, then we stop, and the reverse."""
        loan = self._loan
        if loan is not None and loan.begin.is_set() and not loan.ended.is_set():
            loan.yielded.clear()
            self._tell(b"z")
            loan.yielded.wait(_END_S)
        self._modes.restore()  # who is still being connected to does not
        self._by_default(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._stop)
        self._again = loan is not None and loan.ended.is_set()
        self._tell(b"g")

    def _die(self, signum: int, _frame: FrameType | None) -> None:
        self._modes.restore(for_good=True)
        self._by_default(signum)

    def _by_default(self, signum: int) -> None:
        """What that signal does to a program that does not handle it, at once."""
        signal.signal(signum, signal.SIG_DFL)
        signal.pthread_kill(threading.main_thread().ident or 0, signum)


class _Loan:
    """Our terminal, lent to one worker until that ends."""

    def __init__(
        self,
        connect: Callable[[], Bridge],
        modes: Modes,
        wakeup: int,
        show: Callable[[int, bytes], object],
        *,
        keyboard: bool,
        suspends: bool,
    ) -> None:
        """`suspends`: the rank stops when we do."""
        self.begin, self.yielded, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.trouble, self.ended_at = "", 0.0
        self._connect, self._modes, self._wakeup, self._show = connect, modes, wakeup, show
        self._keyboard, self._reads, self._suspends = keyboard, keyboard, suspends
        self._shows_on = next((fd for fd in (1, 2, 0) if os.isatty(fd)), 1)
        self._wanted = {"isig": True, "opost": True, "ixon": True}
        self._over = self._suspended = False
        self._size: list[int] | None = None
        self._take()  # what is typed from now on is shown by the rank's own terminal
        threading.Thread(target=self._run, daemon=True, name="terminal").start()

    def leave(self) -> None:
        """End it, once the wakeup pipe is written to."""
        self._over = True
        self.begin.set()

    def _run(self) -> None:
        try:
            bridge = self._connect()
            try:
                line = Connection(bridge.sock)
                self._send_size(line)
                line.send(show=True)
                self.begin.wait()
                self._pass_on(line)
            finally:
                why = bridge.end()
            if not self._over:
                self.trouble = f"the connection to its terminal has ended{why and ': '}{why}"
        except LaunchError as error:
            self.trouble = f"its terminal is not reached: {error.message}"
        finally:
            self._modes.restore()
            self.ended_at = time.monotonic()
            self.ended.set()

    def _pass_on(self, line: Connection) -> None:
        self._take()
        while not line.ended and not self._over:
            busy = output.congested()
            poll = select.poll()
            poll.register(self._wakeup, select.POLLIN)
            poll.register(line, (0 if busy else select.POLLIN) | (select.POLLOUT if line.waiting else 0))
            if self._reads and line.waiting < _UNSENT_BYTES:
                poll.register(0, select.POLLIN)
            waits = (
                self._keyboard and not self._reads and not self._suspended
            )  # a shell does not tell who comes to the foreground
            ready = {fd for fd, _ in poll.poll(_LOOK_MS if busy or waits else _IDLE_MS)}
            if waits:
                self._take()
            if self._wakeup in ready:
                self._obey(line)
            if line.fileno() in ready:
                line.flush()
                for message in [] if busy else line.receive():
                    self._take_message(message)
            if 0 in ready and self._reads:
                self._type(line)

    def _take_message(self, message: Message) -> None:
        if "modes" in message:
            before, self._wanted = self._wanted, {**self._wanted, **message["modes"]}
            if self._wanted["opost"] != before["opost"]:
                output.drain()  # what came before was made for the modes before
            self._take()
        elif "out" in message:
            data = message["out"].encode("latin-1")
            # What the rank's terminal has added to its line ends ours adds, too.
            self._show(self._shows_on, data.replace(b"\r\n", b"\n") if self._wanted["opost"] else data)
        elif "exited" in message:
            self._over = True

    def _type(self, line: Connection) -> None:
        try:
            keys = os.read(0, _KEYS_BYTES)
        except OSError:  # the terminal is gone
            keys = b""
        self._send_size(line)  # what was typed in the new window comes after it
        if keys:
            line.send(keys=keys.decode("latin-1"))
        else:
            line.send(eof=True)
            self._reads = self._keyboard = False

    def _take(self) -> None:
        """Have our terminal as the rank needs it, and its keys; those of a terminal that is not ours now are left to others."""
        if self._suspended:  # the shell's, until we go on
            return
        taken = self._modes.take(self._wanted, keyboard=self._keyboard)
        self._reads = self._keyboard and (taken or not os.isatty(0))

    def _send_size(self, line: Connection) -> None:
        size = self._modes.size()
        if size is not None and size != self._size:
            self._size = size
            line.send(size=size)

    def _obey(self, line: Connection) -> None:
        words = b""
        with contextlib.suppress(BlockingIOError):  # the loan before this one, or after it, was faster
            words = os.read(self._wakeup, 64)
        for word in words.decode():
            if word == "z":
                self._modes.restore()
                self._reads, self._suspended = False, True
                if self._suspends:
                    line.send(suspend=True)
                self.yielded.set()
            else:
                self._send_size(line)
                if goes_on := word == "g" and self._suspended:
                    self._suspended = False
                if word != "w":
                    self._take()
                if goes_on:
                    line.send(**{"continue": True})
