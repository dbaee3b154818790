"""What is reported of a worker's terminal that is not reached, or not any more."""

from __future__ import annotations

import os
import socket
import sys
import termios
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from launcher.agent.terminal import frames
from launcher.backends.kubernetes import pod_exec
from launcher.console import terminal
from tests.terminal.connections import BEGAN, LIMIT_S, Agents, received, refused
from tests.terminal.screen import Screen

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]
CONTINUES = "the run continues without it; Ctrl-Z, then fg, tries again"


def wait_for_end(ours: terminal.Terminal) -> None:
    assert ours._loan is not None
    assert ours._loan.ended.wait(LIMIT_S)


def test_a_terminal_that_is_not_reached_is_reported_once(ours: terminal.Terminal) -> None:
    assert ours.trouble() == ""
    ours.open(refused, keyboard=True)
    wait_for_end(ours)
    assert ours.trouble() == f"its terminal is not reached: srun: no steps from here; {CONTINUES}"
    assert ours.trouble() == ""


def test_nothing_is_reported_of_a_worker_that_has_ended(ours: terminal.Terminal) -> None:
    ours.open(refused, keyboard=True)
    wait_for_end(ours)
    ours.worker_ended()
    assert ours.trouble() == ""
    ours.open(refused, keyboard=True)
    wait_for_end(ours)
    assert ours.trouble(), "another one has begun"


def test_a_late_message_is_waited_for(ours: terminal.Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_SETTLE_S", 1000.0)
    ours.open(refused, keyboard=True)
    wait_for_end(ours)
    assert ours.trouble() == ""
    monkeypatch.setattr(terminal, "_SETTLE_S", 0.0)
    assert ours.trouble()


def test_line_ends_are_our_terminals_own_and_a_carriage_return_alone_is_shown(agents: Agents) -> None:
    shown: list[bytes] = []
    about: Any = {"rank": 3, "interactive": True, "stdout": True, "stderr": True, "size": BEGAN}
    with terminal.Terminal(about, lambda _, data: shown.append(data)) as ours:
        ours.open(agents.connect, keyboard=False)
        with agents.next() as agent:
            ours.attached()
            line = frames.Connection(agent)
            line.send(out="one\r\ntwo\r\n 50 %\r")
            line.send(out="100 %\r\n")
            line.send(exited=True)
            wait_for_end(ours)

    assert shown == [b"one\ntwo\n 50 %\r", b"100 %\n"]


def test_a_broken_connection_is_made_again_and_carries_what_is_shown(ours: terminal.Terminal, agents: Agents) -> None:
    ours.open(agents.connect, keyboard=False)
    with agents.next():
        ours.attached()
        assert ours.shows(3, stderr=False)
    wait_for_end(ours)
    assert ours.trouble() == "the connection to its terminal has ended; connecting again"
    ours.detached()
    assert not ours.shows(3, stderr=False)
    with agents.next() as agent:
        ours.attached()
        assert ours.shows(3, stderr=False)
        frames.Connection(agent).send(exited=True)
        wait_for_end(ours)
    ours.detached()
    assert not ours.shows(3, stderr=False)
    assert ours.trouble() == ""


def test_what_was_sent_before_a_connection_broke_can_be_read_by_an_end_that_finds_it_broken_on_writing() -> None:
    mine, theirs = socket.socketpair()
    line = frames.Connection(mine)
    with theirs:
        frames.Connection(theirs).send(out="the last")
    line.send(keys="too late")
    assert (line.deaf, line.ended, line.waiting) == (True, False, 0)
    found = []
    while not line.ended:
        found += line.receive()
    line.close()
    assert found == [{"out": "the last"}]


def test_a_worker_that_replaces_one_whose_end_was_not_reported_is_shown_from_its_start(
    ours: terminal.Terminal, agents: Agents
) -> None:
    ours.open(agents.connect, keyboard=False)
    with agents.next() as lost:
        ours.attached()
        # The end of the first was not reported, nor has its connection ended.
        ours.open(agents.connect, keyboard=False)
        assert not ours.shows(3, stderr=False), "its stream has it until it is attached"
        assert received(lost) == {"show": True}
        received(lost, ends=True)
        with agents.next():
            ours.attached()
            assert ours.shows(3, stderr=False)


class Websocket:
    """As much of a websocket as a bridge into a pod uses: a program's output comes in frames."""

    def __init__(self) -> None:
        self.coming: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
        self.sent: SimpleQueue[bytes] = SimpleQueue()

    def recv_data_frame(self, _control: bool) -> tuple[int, SimpleNamespace]:
        kind, data = self.coming.get(timeout=LIMIT_S)
        return kind, SimpleNamespace(data=data)

    def send(self, data: bytes, opcode: int) -> None:
        self.sent.put(data)

    def close(self, timeout: float) -> None:
        pass


def test_no_output_of_a_program_in_a_pod_is_lost_if_we_are_slow_and_its_end_is_noticed_at_once() -> None:
    pod = Websocket()
    bridge = pod_exec.PodBridge(pod)
    bridge.sock.sendall(b"keys")
    assert pod.sent.get(timeout=LIMIT_S) == b"\0keys", "both directions work"
    many = b"x" * 5_000_000  # more than any socket buffers
    pod.coming.put((pod_exec._BINARY, b"\1" + many))
    pod.coming.put((pod_exec._BINARY, b"\2it is over\n"))
    pod.coming.put((pod_exec._CLOSE, b""))
    bridge.sock.settimeout(LIMIT_S)
    read = b""
    while more := bridge.sock.recv(1 << 16):
        read += more
    assert read == many
    assert bridge.end() == "it is over"


CONNECTING = """
import threading
from launcher.console.terminal import Terminal
about = {"rank": 0, "interactive": False, "stdout": True, "stderr": True, "size": [24, 80]}
with Terminal(about, print) as terminal:
    terminal.open(threading.Event().wait, keyboard=True)
    print("connecting", flush=True)
    while True:
        threading.Event().wait(1)
"""


def test_ctrl_z_before_a_worker_is_reached_leaves_the_shell_its_terminal(tmp_path: Path) -> None:
    (tmp_path / "connecting.py").write_text(CONNECTING)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PS1": "shell> ", "ENV": ""}
    with Screen(("sh", "-i"), env=env, cwd=tmp_path) as shell:
        shell.until("shell> ")
        shell.type(f"{sys.executable} connecting.py\n")
        shell.until("connecting\r\n")
        assert not shell.modes[3] & termios.ECHO
        shell.type("\x1a")
        shell.until("shell> ")
        shell.type("stty -a; echo as it was\n")
        said = shell.until("\nas it was\r\n")
        assert " icanon " in said
        assert " echo " in said
