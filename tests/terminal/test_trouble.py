"""A terminal that is not reached, or not any more, as whoever follows the run tells of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import termios
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.terminal import frames
from launcher.backends.kubernetes import pod_exec
from launcher.console import terminal
from launcher.console.terminal_size import SizeTeller
from launcher.errors import CommandError
from launcher.system.pipes import Bridge
from testbed import wait_until
from tests.terminal.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
LIMIT_S = 60
BEGAN = [24, 80]
GOES_ON = "the run continues without it; Ctrl-Z, then fg, tries again"


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[terminal.Terminal]:
    """With no patience for words that are late."""
    monkeypatch.setattr(terminal, "_SETTLE_S", 0.0)
    about = {"rank": 3, "interactive": True, "stdout": True, "stderr": True, "size": BEGAN}
    with terminal.Terminal(about, lambda *_: None) as found:
        yield found


def refused() -> Bridge:
    raise CommandError("srun: no steps from here")


class Agents:
    """Those whom a connection reaches."""

    def __init__(self) -> None:
        self.met: SimpleQueue[socket.socket] = SimpleQueue()

    def connect(self) -> Bridge:
        """Another one."""
        mine, theirs = socket.socketpair()
        theirs.settimeout(LIMIT_S)
        self.met.put(theirs)
        return Bridge(mine)

    def next(self) -> socket.socket:
        """The agent's end of the next connection."""
        return self.met.get(timeout=LIMIT_S)


@pytest.fixture
def agents() -> Agents:
    """None yet."""
    return Agents()


def heard(agent: socket.socket, *, ends: bool = False) -> dict[str, Any]:
    """The next message; with `ends` there is none any more."""
    size = agent.recv(frames.LENGTH.size, socket.MSG_WAITALL)
    if ends:
        assert size == b""
        return {}
    found: dict[str, Any] = json.loads(agent.recv(frames.LENGTH.unpack(size)[0], socket.MSG_WAITALL))
    return found


def wait_for_end(ours: terminal.Terminal) -> None:
    assert ours._loan is not None
    assert ours._loan.ended.wait(LIMIT_S)


def test_that_it_is_not_reached_is_said_once(ours: terminal.Terminal) -> None:
    assert ours.trouble() == ""
    ours.open(refused, keyboard=True)
    wait_for_end(ours)
    assert ours.trouble() == f"its terminal is not reached: srun: no steps from here; {GOES_ON}"
    assert ours.trouble() == ""


def test_of_a_worker_that_has_ended_nothing_is_said(ours: terminal.Terminal) -> None:
    ours.open(refused, keyboard=True)
    wait_for_end(ours)
    ours.worker_ended()
    assert ours.trouble() == ""
    ours.open(refused, keyboard=True)
    wait_for_end(ours)
    assert ours.trouble(), "another one has begun"


def test_a_word_that_is_late_is_waited_for(ours: terminal.Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_SETTLE_S", 1000.0)
    ours.open(refused, keyboard=True)
    wait_for_end(ours)
    assert ours.trouble() == ""
    monkeypatch.setattr(terminal, "_SETTLE_S", 0.0)
    assert ours.trouble()


def test_line_ends_are_our_terminals_own_and_a_carriage_return_alone_is_shown(agents: Agents) -> None:
    shown: list[bytes] = []
    about = {"rank": 3, "interactive": True, "stdout": True, "stderr": True, "size": BEGAN}
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


def test_a_connection_that_breaks_is_made_again_and_what_is_shown_comes_by_it(ours: terminal.Terminal, agents: Agents) -> None:
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


def test_what_was_written_before_the_connection_broke_can_be_read_by_who_has_found_that_when_it_wrote() -> None:
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


def test_a_worker_that_begins_where_another_has_ended_without_a_word_is_shown_from_its_start(
    ours: terminal.Terminal, agents: Agents
) -> None:
    ours.open(agents.connect, keyboard=False)
    with agents.next() as lost:
        ours.attached()
        ours.open(agents.connect, keyboard=False)  # nobody has told of the end of the first, nor has its connection ended
        assert not ours.shows(3, stderr=False), "its stream has it until it is attached"
        assert heard(lost) == {"show": True}
        heard(lost, ends=True)
        with agents.next():
            ours.attached()
            assert ours.shows(3, stderr=False)


@pytest.fixture
def window(ours: terminal.Terminal, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Our window has another size."""
    now = list(BEGAN)
    monkeypatch.setattr(ours._sizes, "_size", lambda: list(now))

    def resize(rows: int, columns: int) -> None:
        now[:] = rows, columns
        os.kill(os.getpid(), signal.SIGWINCH)

    return resize


def test_who_only_looks_on_connects_when_the_window_changes_and_tells_nothing_but_its_size(
    ours: terminal.Terminal, agents: Agents, window: Callable[..., None]
) -> None:
    ours.only_looks_on(agents.connect)
    assert agents.met.empty()
    window(25, 80)
    with agents.next() as first:
        assert heard(first) == {"size": [25, 80]}
        window(26, 90)
        assert heard(first) == {"size": [26, 90]}
        assert not ours.shows(3, stderr=False)
    window(27, 90)
    with agents.next() as second:
        assert heard(second) == {"size": [27, 90]}, "the connection was lost, and made again for the next change"
        ours.worker_ended()
        heard(second, ends=True)
    ours.only_looks_on(agents.connect)
    with agents.next() as another:
        assert heard(another) == {"size": [27, 90]}, "a worker that begins later has what ours had first"
    assert ours.trouble() == ""


def test_a_size_for_which_the_connection_turns_out_to_be_broken_is_told_by_another(agents: Agents) -> None:
    teller = SizeTeller(BEGAN, lambda: None)
    teller._tell(agents.connect, [25, 80])
    agents.next().close()
    teller._tell(agents.connect, [26, 80])
    with agents.next() as second:
        assert heard(second) == {"size": [26, 80]}
    teller._leave()


def test_that_a_size_cannot_be_told_is_said_once(ours: terminal.Terminal, window: Callable[..., None]) -> None:
    ours.only_looks_on(refused)
    for _ in range(2):
        window(25, 80)
        ours._sizes.look()
    wait_until("it to be tried", lambda: ours._sizes._failed is not None)
    assert ours.trouble() == "its terminal keeps its size: srun: no steps from here"
    window(26, 80)
    wait_until("it to be tried again", lambda: ours._sizes._failed is not None)
    assert ours.trouble() == ""


def test_that_the_size_of_a_worker_that_has_ended_cannot_be_told_is_not_said(
    ours: terminal.Terminal, window: Callable[..., None]
) -> None:
    ours.only_looks_on(refused)
    window(25, 80)
    wait_until("it to be tried", lambda: ours._sizes._failed is not None)
    ours.worker_ended()
    assert ours.trouble() == ""


class Websocket:
    """As far as a bridge into a pod takes it: a program's output comes in frames."""

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


def test_of_what_a_program_in_a_pod_writes_nothing_is_lost_where_we_are_slow_and_its_end_is_heard_at_once() -> None:
    pod = Websocket()
    bridge = pod_exec.PodBridge(pod)
    bridge.sock.sendall(b"keys")
    assert pod.sent.get(timeout=LIMIT_S) == b"\0keys", "both directions go on"
    many = b"x" * 5_000_000  # more than any socket keeps
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
