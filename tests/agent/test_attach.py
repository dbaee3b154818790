"""The bridge from the launcher to a worker's terminal, as srun, ssh and exec start it on a node."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from launcher.agent.system import processes
from launcher.agent.terminal import attach
from launcher.errors import CommandError
from launcher.payload import agent_archive
from launcher.system import pipes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EVERY_BYTE = bytes(range(256)) + secrets.token_bytes(300_000)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node's directory, with this process as its agent."""
    scratch, directory = tmp_path / ("long" * 40) / "scratch", tmp_path / "nodes/0"
    for made in (scratch, directory):
        made.mkdir(parents=True)
    (tmp_path / "agent.pyz").write_bytes(agent_archive.packed())
    me = os.getpid()
    about = {"pid": me, "start_ticks": processes.start_ticks(me), "scratch": str(scratch)}
    (directory / "agent.json").write_text(json.dumps(about))
    return directory


@pytest.fixture
def agent(node: Path) -> Iterator[socket.socket]:
    """Listens where clients ask for the terminal of rank 3."""
    scratch = json.loads((node / "agent.json").read_text())["scratch"]
    directory = os.open(scratch, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{directory}/terminal-3")
        server.listen()
        server.settimeout(60)
        yield server
    os.close(directory)


def bridge(node: Path, rank: int = 3) -> pipes.ProgramBridge:
    archive = str(node.parent.parent / "agent.pyz")
    noisy = 'printf "welcome, no newline"; exec "$0" "$@"'
    argv = ("sh", "-c", noisy, sys.executable, archive, "--attach", str(node), str(rank))
    found = pipes.ProgramBridge(argv)
    found.wait_for(attach.CONNECTED, 60)
    return found


def read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := sock.recv(count - len(data))):
        data += more
    return data


def test_every_byte_passes_in_both_directions_and_a_close_reaches_the_other_end(
    node: Path, agent: socket.socket
) -> None:
    found = bridge(node)
    reads: list[bytes] = []
    with agent.accept()[0] as other:
        work = [threading.Thread(target=sock.sendall, args=(EVERY_BYTE,)) for sock in (found.sock, other)]
        work += [threading.Thread(target=lambda: reads.append(read(other, len(EVERY_BYTE))))]
        for thread in work:
            thread.start()
        assert read(found.sock, len(EVERY_BYTE)) == EVERY_BYTE
        for thread in work:
            thread.join(60)
        assert reads == [EVERY_BYTE]
        assert found.end() == ""
        assert other.recv(1) == b""


def test_the_bridge_ends_when_the_agent_closes_the_connection(node: Path, agent: socket.socket) -> None:
    found = bridge(node)
    agent.accept()[0].close()
    assert found.sock.recv(1) == b""
    assert found.end() == ""


def test_what_the_agent_has_sent_arrives_even_if_keys_are_typed_after_it_has_closed(
    node: Path, agent: socket.socket
) -> None:
    found = bridge(node)
    with agent.accept()[0] as other:
        other.sendall(EVERY_BYTE)
    with contextlib.suppress(BrokenPipeError):  # where pipes take more than here, the bridge may have ended, too
        found.sock.sendall(b"too late")
    assert read(found.sock, len(EVERY_BYTE)) == EVERY_BYTE
    assert found.end() == ""


def test_a_missing_rank_and_an_agent_that_has_exited_are_reported(node: Path, agent: socket.socket) -> None:
    with pytest.raises(CommandError, match=r"rank 2 has no terminal here: .*No such file"):
        bridge(node, rank=2)
    about = json.loads((node / "agent.json").read_text())
    (node / "agent.json").write_text(json.dumps({**about, "start_ticks": 1}))
    with pytest.raises(CommandError, match=r"rank 3 has no terminal here: the agent of .* is not running"):
        bridge(node)
