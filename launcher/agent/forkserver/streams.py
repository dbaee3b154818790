"""A worker's stdin, stdout and stderr: pipes from and to the agent, or a terminal of the worker's own session."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, List

from ..named_tuple import NamedTuple

if TYPE_CHECKING:
    from ..messages import LentTerminal


_MODES = ("iflag", "oflag", "cflag", "lflag")


class Streams(NamedTuple):
    """Descriptors for one worker, and the agent's ends of them."""

    worker: List[int]
    """For its 0, 1 and 2; if negative, that of the fork server."""

    terminal: int
    """The worker's side of the terminal that controls its session; if negative, it has none."""

    agent: List[int]
    """In this order, as far as it has them: the terminal, and the pipes of its stdin, stdout and stderr."""

    def close(self, ends: List[int]) -> None:
        """Close one side, `worker` or `agent`."""
        for fd in {fd for fd in (*ends, self.terminal if ends is self.worker else -1) if fd >= 0}:
            os.close(fd)

    def become(self) -> None:
        """Make them 0, 1 and 2 in a worker that leads its session."""
        if self.terminal >= 0:
            import fcntl
            import termios

            fcntl.ioctl(self.terminal, termios.TIOCSCTTY, 0)
        for fd, end in enumerate(self.worker):
            if end >= 0:
                os.dup2(end, fd)
        self.close(self.worker)


def pipes() -> Streams:
    """An empty stdin, and two pipes."""
    null = os.open(os.devnull, os.O_RDONLY)
    (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe()
    return Streams([null, out_w, err_w], -1, [out_r, err_r])


def made(wanted: LentTerminal) -> Streams:
    """Make the streams that a worker's request asks for.

    `stdin` is `tty`, `pipe`, `passed` (the fork server's) or `null`. `stdout` and `stderr` tell whether they are the
    terminal. `very` has the paths of those that are the launcher's own terminal, which all workers share. The `name`
    of a new terminal is added to the request.
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


def _set_up(terminal: int, wanted: LentTerminal) -> None:
    """Set the size and modes of the terminal that this one stands for."""
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
