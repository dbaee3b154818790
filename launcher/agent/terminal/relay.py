"""A worker's terminal on its node: a pty of the worker's session, whose other end the agent serves to one client, the launcher.

The socket is `terminal-RANK` in the agent's scratch directory. The stream says that it is there (`terminal_opened`), from where
on the client is shown what the rank writes there (`terminal_attached`) and that it is so no more (`terminal_detached`); the
stream has all of it as well, with the line ends of a file. Both ways go frames as those of channel.py, bytes in them as Latin-1:

    client to agent: {"size": [rows, columns]}   first of all, and whenever it has changed
                     {"show": true}                         it is to be shown what the worker writes from here on, and its modes
                     {"keys": TEXT}, {"eof": true}          what was typed; nothing more comes
                     {"suspend": true}, {"continue": true}  stop the worker's process group; let it go on
    agent to client: {"modes": {"isig": BOOL, "opost": BOOL, "ixon": BOOL}}   first of all, and whenever they have changed
                     {"out": TEXT}                          exactly what it has written; a line end is never in two of them
                     {"exited": true}                       the worker has, and that was all; the end of the connection follows

A bridge between machines passes bytes on and knows no frames. Without a client the worker goes on, and is not heard; who reads
its keyboard then finds its end after a minute.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import selectors
import signal
import struct
import termios
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from ..channel import Message
from ..protocol import STDERR, STDOUT
from ..stream.output import Pipe
from ..stream.writer import Writer
from .attach import name_of
from .frames import Connection, listen
from .keyboard import Keyboard
from .screen import Screen

_BEHIND_BYTES = 256 * 1024
"""With so much that waits for the client, the worker waits, too, as for any terminal."""

_FAR_BEHIND_BYTES = 8 << 20
"""With so much, a client that only looks on, and for which nobody waits, is let go of: the stream has it all."""

_LOOK_S = 0.1
_ALONE_S = 60.0
_FAREWELL_S = 15.0
"""So long a client that takes nothing is waited for when its worker has ended."""


class Loop(NamedTuple):
    """What a terminal needs of the agent."""

    selector: selectors.BaseSelector
    writer: Writer
    event: Callable[..., None]
    """Writes an event."""

    watch: Callable[[Pipe], None]
    """Reads from that pipe, or does not while it is held."""

    signal: Callable[[int, int], None]
    """Signals the process group of a rank."""


class Terminal:
    """One worker's terminal, from its start to its end, for one client after another."""

    def __init__(
        self, screen: Optional[Screen], keys_fd: int, rank: int, path: str, *, name: str, keyboard: bool, loop: Loop
    ) -> None:
        """`keys_fd`: the pty once more, for writing; without `screen` a pipe. `keyboard`: it is the worker's stdin.

        `path` is to be its socket; `name` is the worker's side of the pty.
        """
        self.rank, self._screen, self._loop = rank, screen, loop
        if screen is not None:
            screen.terminal = self
        side = None if screen is None else name
        self._keyboard = Keyboard(keys_fd, side, loop.selector, self._keys_were_taken, used=keyboard)
        self._client: Optional[Connection] = None
        self._shown = False
        """Whether the client has asked to see what the worker writes; else it only tells the size."""

        self._modes: Dict[str, bool] = {}
        self._suspended = False
        self._alone_since: Optional[float] = time.monotonic()
        self._path = path
        self._listener = listen(self._path)
        loop.selector.register(self._listener, selectors.EVENT_READ, self._accept)
        loop.event("terminal_opened", rank=rank, keyboard=keyboard)

    # -- the worker's side --------------------------------------------------------------------------------------------

    @property
    def behind(self) -> bool:
        """Whether the client, who has the keyboard, has too much to read."""
        return self._keyboard.used and self._client is not None and self._client.waiting > _BEHIND_BYTES

    def show(self, data: bytes) -> None:
        """The worker has written that."""
        if self._client is not None and self._shown:
            self._look_at_modes()
            self._client.send(out=data.decode("latin-1"))
            self._attend()

    def patience(self, now: float) -> float:
        """So many seconds until `look` is to be called at the latest."""
        if self._client is not None or self._keyboard.hung_up:
            return _LOOK_S
        return _ALONE_S if self._alone_since is None else self._alone_since + _ALONE_S - now

    def look(self, now: float) -> None:
        """What nobody tells us of: other modes; that nobody has come for long."""
        self._keyboard.look()
        if self._client is not None:
            self._look_at_modes()
            self._attend()
        elif self._alone_since is not None and now - self._alone_since >= _ALONE_S:
            self._alone_since = None
            if self._keyboard.used:
                self._keyboard.hang_up()

    def go_on(self) -> None:
        """Nothing is suspended any more: the worker is to end."""
        if self._suspended:
            self._suspended = False
            self._loop.signal(self.rank, signal.SIGCONT)

    def close(self) -> None:
        """The worker has ended, and all that it has written was shown to `show`."""
        if self._screen is not None:
            self._screen.terminal = None  # what others write there after it is the stream's
        self._loop.selector.unregister(self._listener)
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        if self._client is not None:
            self._client.send(exited=True)
            limit = time.monotonic() + _FAREWELL_S
            poll = select.poll()
            poll.register(self._client.fileno(), select.POLLOUT)
            while self._client.waiting and not self._client.ended and time.monotonic() < limit:
                poll.poll(_LOOK_S * 1000)
                self._client.flush()
            self._lose_client()
        self._keyboard.close()

    # -- the client's side --------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            sock = self._listener.accept()[0]
        except BlockingIOError:
            return
        if self._client is not None:  # whose connection may have broken with nobody telling us
            self._lose_client()
        self._client, self._alone_since, self._modes = Connection(sock), None, {}
        self._keyboard.hung_up = False
        self._loop.selector.register(self._client.fileno(), selectors.EVENT_READ, self._from_client)

    def _attach(self) -> None:
        self._shown = True
        if self._screen is not None:
            self._screen.flush_part(self._loop.writer, float("inf"))  # what came before is the stream's
        self._loop.event("terminal_attached", rank=self.rank)
        self._look_at_modes()
        if self._client is not None and self._screen is not None and self._screen.half:
            self._client.send(out=self._screen.half.decode())

    def _attend(self) -> None:
        """Look for what the client can be asked now."""
        assert self._client is not None
        if self._client.ended or self._client.waiting > _FAR_BEHIND_BYTES:
            self._lose_client()
            return
        events = selectors.EVENT_WRITE if self._client.waiting else 0
        events |= selectors.EVENT_READ if not self._keyboard.full or not events else 0
        self._loop.selector.modify(self._client.fileno(), events, self._from_client)
        self._watch()

    def _from_client(self) -> None:
        if self._client is None:
            return
        self._client.flush()
        for message in self._client.receive():
            self._hear(message)
        if self._client is not None:
            self._attend()

    def _hear(self, message: Message) -> None:
        if "size" in message and self._screen is not None:
            fcntl.ioctl(self._keyboard.fd, termios.TIOCSWINSZ, struct.pack("HHHH", *message["size"], 0, 0))
        elif "show" in message and not self._shown:
            self._attach()
        elif "keys" in message:
            self._keyboard.type(message["keys"].encode("latin-1"))
        elif "eof" in message:
            self._keyboard.end()
        elif "suspend" in message and not self._suspended:
            self._suspended = True
            self._loop.signal(self.rank, signal.SIGSTOP)
        elif "continue" in message:
            self.go_on()

    def _keys_were_taken(self) -> None:
        if self._client is not None:
            self._attend()

    def _lose_client(self) -> None:
        assert self._client is not None
        self._loop.selector.unregister(self._client.fileno())
        self._client.close()
        self._client, self._alone_since = None, time.monotonic()
        if self._shown:
            self._shown = False
            self._loop.event("terminal_detached", rank=self.rank)
        self._watch()
        self.go_on()

    def _watch(self) -> None:
        if self._screen is not None:
            self._loop.watch(self._screen)

    def _look_at_modes(self) -> None:
        """Tell the client what its own terminal has to do as the worker's does."""
        if self._client is None or self._screen is None or not self._shown:
            return
        iflag, oflag, _, lflag = termios.tcgetattr(self._keyboard.fd)[:4]
        cooked = oflag & termios.OPOST and oflag & termios.ONLCR
        modes = {"isig": bool(lflag & termios.ISIG), "opost": bool(cooked), "ixon": bool(iflag & termios.IXON)}
        if modes != self._modes:
            self._modes = modes
            self._client.send(modes=modes)


def lend(
    lent: Message, fds: List[int], node: int, rank: int, directory: str, loop: Loop
) -> Tuple[Optional[Terminal], Dict[str, Pipe]]:
    """A worker's terminal, or the pipe to its stdin as one, and its output by stream, out of what `streams.made` has made."""
    left, output, screen = list(fds), {}, None
    shown = [name for name in (STDOUT, STDERR) if lent[name]]
    if shown or lent["stdin"] == "tty":
        screen = Screen(left.pop(0), node, rank, shown[0] if shown else STDOUT, kept=bool(shown))
    keys_fd = left.pop(0) if lent["stdin"] == "pipe" else os.dup(screen.fd) if screen else -1
    for name in (name for name in (STDOUT, STDERR) if name not in lent.get("very", {})):
        output[name] = screen if screen is not None and name in shown else Pipe(left.pop(0), node, rank, name)
    if screen is not None and not shown:
        output["echo"] = screen
    keyboard = lent["stdin"] in ("tty", "pipe")
    if screen is None and not keyboard:
        return None, output
    path = os.path.join(directory, name_of(rank))
    return Terminal(screen, keys_fd, rank, path, name=lent.get("name", ""), keyboard=keyboard, loop=loop), output
