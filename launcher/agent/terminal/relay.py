"""A worker's terminal on its node: the agent serves the other end of the worker's pty to one client, the launcher.

The socket is `terminal-RANK` in the agent's scratch directory. Events in the stream mark when it exists
(`terminal_opened`), and from when (`terminal_attached`) to when (`terminal_detached`) a client is shown the output. The
stream has all output as well, with plain newlines. Frames like those of channel.py go both ways, with bytes as Latin-1:

    client to agent: {"size": [rows, columns]}              first, and after each change
                     {"show": true}                         requests the modes, and the output from here on
                     {"keys": TEXT}, {"eof": true}          input, and its end
                     {"suspend": true}, {"continue": true}  stop or continue the worker's process group
    agent to client: {"modes": {"isig": BOOL, "opost": BOOL, "ixon": BOOL}}   first, and after each change
                     {"out": TEXT}                          unchanged output; a line end is never split
                     {"exited": true}                       all output was sent; the connection closes next

A bridge between hosts relays bytes and does not parse frames. Without a client, the worker continues, and its output is
not shown; reads of its keyboard find end-of-file after a minute.
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
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Tuple

from ..channel import Message
from ..named_tuple import NamedTuple
from ..protocol import STDERR, STDOUT
from ..stream.output import Pipe
from ..stream.writer import Writer
from .attach import name_of
from .frames import Connection, listen
from .keyboard import Keyboard
from .screen import Screen

if TYPE_CHECKING:
    from ..messages import LentTerminal

_BEHIND_BYTES = 256 * 1024
"""If this much waits for the client, the worker waits, too, as with any terminal."""

_FAR_BEHIND_BYTES = 8 << 20
"""If this much waits for a client that only watches, it is dropped: the stream has all output."""

_LOOK_S = 0.1
_ALONE_S = 60.0
_FAREWELL_S = 15.0
"""How long to wait for a client that reads nothing after its worker has exited."""


class Loop(NamedTuple):
    """What a terminal needs from the agent."""

    selector: selectors.BaseSelector
    writer: Writer
    event: Callable[..., None]
    """Writes an event."""

    watch: Callable[[Pipe], None]
    """Reads from that pipe, except while it is held."""

    signal: Callable[[int, int], None]
    """Signals the process group of a rank."""


class Terminal:
    """One worker's terminal, from its start to its exit, for one client after another."""

    def __init__(
        self, screen: Optional[Screen], keys_fd: int, rank: int, path: str, *, name: str, keyboard: bool, loop: Loop
    ) -> None:
        """`keys_fd`: a second descriptor of the pty, for writing; without `screen`, a pipe.

        `path`: where to create the socket. `name`: the worker's side of the pty. `keyboard`: it is the worker's stdin.
        """
        self.rank, self._screen, self._loop = rank, screen, loop
        if screen is not None:
            screen.terminal = self
        side = None if screen is None else name
        self._keyboard = Keyboard(keys_fd, side, loop.selector, self._keys_were_taken, used=keyboard)
        self._client: Optional[Connection] = None
        self._shown = False
        """Whether the client has requested the output; otherwise it only sends the size."""

        self._modes: Dict[str, bool] = {}
        self._suspended = False
        self._leaves_at: Optional[float] = None
        """Once the worker has exited: until when the client may read the rest."""

        self._alone_since: Optional[float] = time.monotonic()
        self._path = path
        self._listener = listen(self._path)
        loop.selector.register(self._listener, selectors.EVENT_READ, self._accept)
        loop.event("terminal_opened", rank=rank, keyboard=keyboard)

    # -- the worker's side --------------------------------------------------------------------------------------------

    @property
    def behind(self) -> bool:
        """Whether a client that has the keyboard has too much unread output."""
        return self._keyboard.used and self._client is not None and self._client.waiting > _BEHIND_BYTES

    def show(self, data: bytes) -> None:
        """Show what the worker has written."""
        if self._client is not None and self._shown:
            self._look_at_modes()
            self._client.send(out=data.decode("latin-1"))
            self._attend()

    def patience(self, now: float) -> float:
        """In how many seconds `look` must be called at the latest."""
        if self._client is not None or self._keyboard.hung_up:
            return _LOOK_S
        return _ALONE_S if self._alone_since is None else self._alone_since + _ALONE_S - now

    def look(self, now: float) -> None:
        """Check what causes no event: changed modes, and a long time without a client."""
        if self._leaves_at is not None:
            if self._client is not None and now >= self._leaves_at:
                self._lose_client()
            return
        self._keyboard.look()
        if self._client is not None:
            self._look_at_modes()
            self._attend()
        elif self._alone_since is not None and now - self._alone_since >= _ALONE_S:
            self._alone_since = None
            if self._keyboard.used:
                self._keyboard.hang_up()

    def go_on(self) -> None:
        """Continue the worker if it is suspended."""
        if self._suspended:
            self._suspended = False
            self._loop.signal(self.rank, signal.SIGCONT)

    @property
    def connected(self) -> bool:
        """Whether it has a client; after `close`, one that has not read everything."""
        return self._client is not None

    def close(self) -> None:
        """Close the terminal: the worker has exited, and all its output was passed to `show`.

        A client that only looks on may read the rest while the node's other workers go on, until `part`.
        """
        if self._screen is not None:
            self._screen.terminal = None  # later output of other processes goes to the stream only
        self._loop.selector.unregister(self._listener)
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        if self._client is not None:
            self._leaves_at = time.monotonic() + _FAREWELL_S
            self._client.send(exited=True)
            if self._keyboard.used:  # its output is nowhere else on the screen
                self.part()
            else:
                self._attend()
        self._screen = None
        self._keyboard.close()

    def part(self) -> None:
        """Wait for a client that has not read everything, until its time is over."""
        while self._client is not None:
            if self._client.ended or not self._client.waiting or time.monotonic() >= (self._leaves_at or 0.0):
                self._lose_client()
                return
            poll = select.poll()
            poll.register(self._client.fileno(), select.POLLOUT)
            poll.poll(_LOOK_S * 1000)
            self._client.flush()

    # -- the client's side --------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            sock = self._listener.accept()[0]
        except BlockingIOError:
            return
        if self._client is not None:  # its connection may have broken unnoticed
            self._lose_client()
        self._client, self._alone_since, self._modes = Connection(sock), None, {}
        self._keyboard.hung_up = False
        self._loop.selector.register(self._client.fileno(), selectors.EVENT_READ, self._from_client)

    def _attach(self) -> None:
        self._shown = True
        if self._screen is not None:
            self._screen.flush_part(self._loop.writer, float("inf"))  # earlier output goes to the stream only
        self._loop.event("terminal_attached", rank=self.rank)
        self._look_at_modes()
        if self._client is not None and self._screen is not None and self._screen.half:
            self._client.send(out=self._screen.half.decode())

    def _attend(self) -> None:
        """Update the events to wait for on the client's socket; drop a client that has closed or is far behind."""
        assert self._client is not None
        is_over = self._leaves_at is not None and not self._client.waiting
        if self._client.ended or is_over or self._client.waiting > _FAR_BEHIND_BYTES:
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
            if self._leaves_at is None:
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
        """Send the client the modes in which its own terminal must match the worker's."""
        if self._client is None or self._screen is None or not self._shown:
            return
        iflag, oflag, _, lflag = termios.tcgetattr(self._keyboard.fd)[:4]
        cooked = oflag & termios.OPOST and oflag & termios.ONLCR
        modes = {"isig": bool(lflag & termios.ISIG), "opost": bool(cooked), "ixon": bool(iflag & termios.IXON)}
        if modes != self._modes:
            self._modes = modes
            self._client.send(modes=modes)


def lend(
    lent: LentTerminal, fds: List[int], node: int, rank: int, directory: str, loop: Loop
) -> Tuple[Optional[Terminal], Dict[str, Pipe]]:
    """A worker's terminal, or its stdin pipe served as one, and its output by stream, from what `streams.made` made."""
    left, output, screen = list(fds), {}, None
    shown = [name for name, is_shown in ((STDOUT, lent["stdout"]), (STDERR, lent["stderr"])) if is_shown]
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
