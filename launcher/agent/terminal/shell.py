"""A shell beside the workers, on a terminal of its own: the same frames as a worker's terminal, on stdin and stdout.

It has the agent's environment with the job's variables, and the job's working directory. It ends with the connection.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import socket
import struct
import sys
import termios
import threading
from typing import Dict, NoReturn, Tuple

from .. import outer_run, roles
from ..job import Job
from ..system import scratch
from . import attach
from .frames import Connection

_READ_BYTES = 64 * 1024
_BEHIND_BYTES = 256 * 1024
_FAREWELL_S = 5.0
_SHELLS = ("/bin/bash", "/bin/sh")
_RAW = {"isig": False, "opost": True, "ixon": False}


def main(directory: str) -> NoReturn:
    """Run the shell until it ends or stdin is closed; `directory` is the node's, with its `agent.json`."""
    try:
        about = attach.agent_of(directory)
        env, cwd = _surroundings(about["pid"], about["scratch"], int(os.path.basename(os.path.normpath(directory))))
    except attach.NOT_THERE as error:
        sys.exit(f"there is no run to open a shell in: {error}")
    os.chdir(cwd)
    argv = [next(filter(os.path.exists, (env.get("SHELL", ""), *_SHELLS))), "-i"]
    pid, fd = pty.fork()
    if pid == 0:
        with contextlib.suppress(OSError):
            os.execve(argv[0], argv, env)
        os._exit(127)
    attach.prepare()
    ours, theirs = socket.socketpair()
    relaying = threading.Thread(target=_relay, args=(theirs,), daemon=True, name="relay")
    relaying.start()
    _serve(Connection(ours), fd)
    ours.close()
    relaying.join(_FAREWELL_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGHUP)
    os._exit(0)


def _relay(sock: socket.socket) -> None:
    """As `attach.relay`; if the launcher is gone, the socket ends, which ends the shell."""
    with contextlib.suppress(OSError):
        attach.relay(sock)
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _surroundings(agent: int, memory: str, node_rank: int) -> Tuple[Dict[str, str], str]:
    """The environment and the working directory for the shell, from the agent's process and the job that it reads.

    `memory`: the agent's directory there.
    """
    with open(f"/proc/{agent}/cmdline", "rb") as file:
        words = file.read().split(b"\0")
    job = roles.job_of(Job.read(os.fsdecode(words[words.index(b"--spec") + 1])), node_rank)
    base = dict(os.environ)
    for path in (os.path.join(memory, scratch.ENVIRONMENT), f"/proc/{agent}/environ"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            pairs = [os.fsdecode(pair).partition("=") for pair in file.read().split(b"\0") if b"=" in pair]
            base.update({name: value for name, _, value in pairs})
            if pairs:
                break
    own = {"DISTLAUNCH_RUN_ID": job.run, "TERM": os.environ.get("TERM") or "xterm"}
    return outer_run.with_record(job.environment(base, node_rank), own), job.cwd


def _serve(line: Connection, fd: int) -> None:
    """Pass keys to the shell's terminal, and its output back, until either side ends."""
    os.set_blocking(fd, False)
    keys = bytearray()
    line.send(modes=_RAW)
    while not line.ended:
        poll = select.poll()
        events = (select.POLLIN if len(keys) < _BEHIND_BYTES else 0) | (select.POLLOUT if line.waiting else 0)
        poll.register(line.fileno(), events)
        poll.register(fd, (select.POLLIN if line.waiting < _BEHIND_BYTES else 0) | (select.POLLOUT if keys else 0))
        ready = dict(poll.poll())
        if fd in ready:
            if keys:
                with contextlib.suppress(BlockingIOError):
                    del keys[: os.write(fd, keys)]
            try:
                line.send(out=os.read(fd, _READ_BYTES).decode("latin-1"))
            except BlockingIOError:
                pass
            except OSError:  # the last process on the terminal has ended
                break
        if line.fileno() in ready:
            line.flush()
            for message in line.receive():
                if "size" in message:
                    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", *message["size"], 0, 0))
                keys += b"\4" if "eof" in message else message.get("keys", "").encode("latin-1")
    line.send(exited=True)
    while line.waiting and not line.ended and not line.deaf:
        select.select([], [line], [], 1.0)
        line.flush()
