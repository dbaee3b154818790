"""The bridge to a worker's terminal: stdin and stdout lead to the launcher (srun, ssh, exec), a socket to the agent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import tty
from typing import Any, Dict, NoReturn

from ..system import files, processes

_BLOCK_BYTES = 64 * 1024
NOT_THERE = (OSError, ValueError, KeyError, TypeError)
"""The exceptions that `connect` raises."""

CONNECTED = b"\ndistlaunch-terminal-1\n"
"""Written to stdout once connected, as login files and prologs may have printed something before."""


def main(directory: str, rank: int) -> NoReturn:
    """Relay bytes in both directions until either end closes; `directory` is the node's, with its `agent.json`."""
    try:
        sock = connect(directory, rank)
    except NOT_THERE as error:
        sys.exit(f"rank {rank} has no terminal here: {error}")
    prepare()
    relay(sock)
    os._exit(0)


def prepare() -> None:
    """Prepare this process to relay bytes on stdin and stdout."""
    for number in processes.PASSED_ON:  # a scheduler signals all processes of a job, but means the workers
        signal.signal(number, signal.SIG_IGN)
    for fd in (0, 1):
        if os.isatty(fd):  # Slurm's, so that it forwards output at once
            tty.setraw(fd)


def relay(sock: socket.socket) -> None:
    """Relay bytes between the socket and stdin and stdout until the socket closes. Exits when stdin closes."""
    _write(CONNECTED)
    threading.Thread(target=_send, args=(sock,), daemon=True, name="keys").start()
    with contextlib.suppress(OSError):  # the reader has closed
        while data := sock.recv(_BLOCK_BYTES):
            _write(data)


def agent_of(directory: str) -> Dict[str, Any]:
    """What the agent that runs in that directory has recorded about itself."""
    about: Dict[str, Any] = json.loads(files.read_word(os.path.join(directory, "agent.json")))
    if processes.start_ticks(about["pid"]) != about["start_ticks"]:
        raise ValueError(f"the agent of {directory} is not running")
    return about


def connect(directory: str, rank: int) -> socket.socket:
    """Connect to the agent that runs in that directory."""
    about = agent_of(directory)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    scratch = os.open(about["scratch"], os.O_RDONLY | os.O_DIRECTORY)
    try:
        sock.connect(f"/proc/self/fd/{scratch}/{name_of(rank)}")  # a socket's path is limited to 107 bytes
    except OSError:
        sock.close()
        raise
    finally:
        os.close(scratch)
    return sock


def name_of(rank: int) -> str:
    """The name of the socket in the agent's scratch directory."""
    return f"terminal-{rank}"


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _send(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(0, _BLOCK_BYTES):
            try:
                sock.sendall(data)
            except OSError:  # the agent reads no more; the rest of what it has sent is still relayed
                return
    os._exit(0)  # the launcher has closed its end
