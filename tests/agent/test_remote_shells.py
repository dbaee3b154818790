"""mpirun's commands for other nodes: they come to a node's inbox, and no node asks again and again."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections import Counter
from typing import TYPE_CHECKING, Any

from launcher.agent.mpi.hub import ROUND, Hub
from launcher.agent.mpi.shells import Shells
from launcher.agent.store.interface import Prefixed
from testbed import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.agent.stores import Served


class Caller:
    """A remote shell that mpirun has called."""

    def __init__(self, *words: bytes) -> None:
        self.words = [b"shell", *words]
        self.codes: list[int] = []

    def answer(self, code: int) -> None:
        """Take the exit code."""
        self.codes.append(code)

    def close(self) -> None:
        """Be let go."""


def test_a_command_runs_on_the_node_that_it_is_for_and_its_code_comes_back_without_polls(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    nodes: list[Shells] = []
    for number in range(2):
        client = served.client()

        def ask(call: str, *args: Any, before: Any = client._ask) -> Any:
            asked[call] += 1
            return before(call, *args)

        monkeypatch.setattr(client, "_ask", ask)
        nodes.append(Shells(number, ["a", "b"], Prefixed("round/0", client), dict(os.environ), str(tmp_path)))
    caller, stranger = Caller(b"b", b"touch", b"made;", b"exit", b"7"), Caller(b"c", b"true")
    try:
        nodes[0].ask(stranger)  # type: ignore[arg-type]
        nodes[0].ask(caller)  # type: ignore[arg-type]
        assert select.select([nodes[1]], [], [], 20)[0]
        nodes[1].attend(starting=True)

        def ended() -> bool:
            nodes[1].attend(starting=True)
            return bool(select.select([nodes[0]], [], [], 0)[0])

        wait_until("its end", ended)
        nodes[0].attend(starting=False)
        assert (stranger.codes, caller.codes, (tmp_path / "made").exists()) == ([255], [7], True)
        before = dict(asked)
        assert before == {"add": 2, "set": 2}, "a message to each"
        for _ in range(100):
            for node in nodes:
                node.attend(starting=True)
        assert dict(asked) == before
    finally:
        for node in nodes:
            node.close()


def test_a_rank_of_an_earlier_round_that_comes_late_is_not_taken_for_one_of_the_next() -> None:
    hub = Hub(f"distlaunch-test-{os.getpid()}")
    with contextlib.ExitStack() as stack:
        stack.callback(hub._listener.close)
        ranks = {name: stack.enter_context(socket.socket(socket.AF_UNIX)) for name in ("round/0/mpi", "round/1/mpi")}
        for name, sock in ranks.items():
            sock.connect(f"\0distlaunch-test-{os.getpid()}")
            text = f"rank\0{ROUND}={name}\0PMI_RANK=0".encode()
            sock.sendall(struct.pack("!I", len(text)) + text)

        def came() -> bool:
            hub.look(0.1)
            return sum(bool(caller.words) for caller in hub.callers) == len(ranks)

        wait_until("both", came)

        (found,) = hub.stand_ins("round/1/mpi")
        stack.callback(found.close)

        assert f"{ROUND}=round/1/mpi".encode() in found.words
        assert ranks["round/0/mpi"].recv(1) == b"", "it is let go of"
