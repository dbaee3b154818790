"""The run's store: what several nodes and threads rely on, and what a stranger's connection cannot do to it."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from launcher.agent import ports, store
from launcher.agent.store import Client, Prefixed, Server, Store, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Served:
    """A store, and connections to it."""

    def __init__(self) -> None:
        self.listener = ports.reserve()
        self.listener.listen(64)
        self.port = ports.port_of(self.listener)
        self.store = Server(self.listener)
        self.clients: list[Client] = []

    def client(self) -> Client:
        self.clients.append(Client("127.0.0.1", self.port, timeout_s=30))
        return self.clients[-1]


@pytest.fixture
def served() -> Iterator[Served]:
    """A store with its server."""
    found = Served()
    yield found
    for client in found.clients:
        client.close()


def each(served: Served) -> list[Store]:
    """Every way to a store, each to a part of its own."""
    return [served.store, Prefixed("at node 0", served.store), Prefixed("round/0", served.client())]


def test_the_calls_do_what_torchs_do_from_here_from_elsewhere_and_with_a_prefix(served: Served) -> None:
    for way in each(served):
        assert not way.check(["a"])
        way.set("a", "ünï\n\0")
        assert (way.get("a"), way.check(["a"]), way.check(["a", "b"])) == ("ünï\n\0".encode(), True, False)
        assert [way.add("n", 2), way.add("n", 0), way.add("n", -1)] == [2, 2, 1]
        assert way.compare_set("c", "", "first") == b"first"
        assert way.compare_set("c", "", "second") == b"first"
        assert way.compare_set("c", "first", "third") == b"third"
        assert way.compare_set("none", "expected", "x") == b"expected"
        assert not way.check(["none"])
        assert way.multi_get(["c", "a"]) == [b"third", "ünï\n\0".encode()]
        with pytest.raises(StoreError, match="none"):
            way.multi_get(["c", "none"])
    assert served.store.get("round/0/c") == b"third"


def test_numbers_that_many_add_to_at_once_are_exact_and_one_word_stands(served: Served) -> None:
    clients = [served.client() for _ in range(8)]
    stands: list[bytes] = []

    def work(at: int) -> None:
        for _ in range(100):
            clients[at].add("n", 1)
        stands.append(clients[at].compare_set("word", "", str(at)))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert served.store.add("n", 0) == 800
    assert len(stands) == 8
    assert len(set(stands)) == 1


def test_a_value_of_many_megabytes_arrives_whole(served: Served) -> None:
    large = "x" * (8 << 20)
    served.client().set("large", large)
    assert served.client().get("large") == large.encode()


def frame(text: bytes) -> bytes:
    return struct.pack("!I", len(text)) + text


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",  # read as a length of 1.2 GB
        frame(b"no json"),
        frame(b"[]"),
        frame(b"{}"),
        frame(b"7"),
        frame(json.dumps(["no such call", "x"]).encode()),
        frame(json.dumps(["set", "x"]).encode()),
        frame(json.dumps(["add", "word", "x"]).encode()),
        frame(b"\xff\xfe"),
        frame(b"[" * 100_000),
    ],
)
def test_what_is_no_request_ends_its_own_connection_and_nothing_else(served: Served, garbage: bytes) -> None:
    before = served.client()
    before.set("word", "kept")
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as stranger:
        stranger.sendall(garbage)
        assert stranger.recv(1) == b"", "the store hangs up"

    assert before.get("word") == b"kept"
    assert served.client().get("word") == b"kept"


def test_a_request_that_never_ends_keeps_nobody_waiting(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port)) as stranger:
        stranger.sendall(frame(json.dumps(["set", "word", "x"]).encode())[:-3])
        assert served.client().add("n", 1) == 1
        assert not served.store.check(["word"])


def test_a_client_that_reads_no_answers_keeps_nobody_waiting(served: Served) -> None:
    served.store.set("large", "x" * (4 << 20))
    with socket.create_connection(("127.0.0.1", served.port)) as stranger:
        stranger.sendall(frame(json.dumps(["get", "large"]).encode()) * 8)
        assert served.client().add("n", 1) == 1


def test_a_store_that_is_gone_or_never_there_is_an_error_that_says_so() -> None:
    with ports.reserve() as held:
        port = ports.port_of(held)
        with pytest.raises(StoreError, match=f"127.0.0.1:{port} was not reached in 0 s"):
            Client("127.0.0.1", port, timeout_s=0.1)
        held.listen()
        client = Client("127.0.0.1", port, timeout_s=30)
        held.accept()[0].close()
        with pytest.raises(StoreError, match="the run's store is gone"):
            client.add("n", 1)
        client.close()


def test_a_node_that_is_early_waits_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    with ports.reserve() as held:
        pauses: list[float] = []

        def sleep(pause: float) -> None:
            pauses.append(pause)
            if len(pauses) == 5:
                held.listen()

        monkeypatch.setattr(store, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
        Client("127.0.0.1", ports.port_of(held), timeout_s=60).close()

    assert len(pauses) == 5
    assert pauses == sorted(pauses), "the longer it takes, the less often it is asked"
    assert pauses[0] < pauses[-1]
