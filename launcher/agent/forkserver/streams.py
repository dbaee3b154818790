"""A worker's stdin, stdout and stderr: pipes whose other ends the agent has, or a terminal of the worker's own session."""

from __future__ import annotations

import os
from typing import List, NamedTuple

from ..channel import Message

_MODES = ("iflag", "oflag", "cflag", "lflag")


class Streams(NamedTuple):
    """Descriptors for one worker, and the agent's ends of them."""

    worker: List[int]
    """For its 0, 1 and 2; below 0: as the fork server's."""

    terminal: int
    """The worker's side of its terminal, which is to control its session; below 0: it has none."""

    agent: List[int]
    """In this order: the terminal, the pipe into its stdin, those of its stdout and stderr; of these, the ones that it has."""

    def close(self, ends: List[int]) -> None:
        """Let go of one side, `worker` or `agent`."""
        for fd in {fd for fd in (*ends, self.terminal if ends is self.worker else -1) if fd >= 0}:
            os.close(fd)

    def become(self) -> None:
        """In a worker that leads its session: have them as 0, 1 and 2."""
        if self.terminal >= 0:
            import fcntl
            import termios

            fcntl.ioctl(self.terminal, termios.TIOCSCTTY, 0)
        for fd, end in enumerate(self.worker):
            if end >= 0:
                os.dup2(end, fd)
        self.close(self.worker)


def pipes() -> Streams:
    """Nothing to read, and two pipes."""
    null = os.open(os.devnull, os.O_RDONLY)
    (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe()
    return Streams([null, out_w, err_w], -1, [out_r, err_r])


def made(wanted: Message) -> Streams:
    """As a worker's request says: `stdin` is `tty`, `pipe`, `passed` (the fork server's) or `null`; the others are true or not.

    `very` has the paths of those that are the launcher's very terminal, which all workers share. Adds the `name` of a terminal.
    """
    worker, ours, terminal = [-1, -1, -1], [], -1
    on_tty = [wanted["stdin"] == "tty", wanted["stdout"], wanted["stderr"]]
    if any(on_tty):
        master, terminal = os.openpty()
        _set_up(terminal, wanted)
        wanted["name"] = os.ttyname(terminal)
        ours.append(master)
    if wanted["stdin"] == "pipe":
        worker[0], end = os.pipe()
        os.set_blocking(end, False)
        ours.append(end)
    elif wanted["stdin"] == "null":
        worker[0] = os.open(os.devnull, os.O_RDONLY)
    very = wanted.get("very", {})
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if on_tty[fd]:
            worker[fd] = terminal
        elif name in very:
            worker[fd] = os.open(very[name], os.O_RDWR | os.O_NOCTTY)
        elif fd:
            end, worker[fd] = os.pipe()
            ours.append(end)
    return Streams(worker, terminal, ours)


def _set_up(terminal: int, wanted: Message) -> None:
    """Size and modes of the terminal for which this one stands."""
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *wanted["size"], 0, 0))
    if modes := wanted.get("modes"):
        attributes = termios.tcgetattr(terminal)
        for place, name in enumerate(_MODES):
            attributes[place] = modes[name]
        for name, key in modes["keys"].items():
            attributes[6][getattr(termios, name)] = bytes([key])
        termios.tcsetattr(terminal, termios.TCSANOW, attributes)
