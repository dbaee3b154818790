"""The run's store: what several nodes and threads rely on, and what a stranger's connection cannot do to it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.agent.network import ports, secure
from launcher.agent.store import client as store_client
from launcher.agent.store import server as store_server
from launcher.agent.store.client import Client
from launcher.agent.store.interface import GoneError, Prefixed, SilentError, Store, StoreError
from launcher.agent.store.server import Server
from launcher.agent.system import processes
from testbed import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


KEY = "k" * 64


class Served:
    """A store, and connections to it."""

    def __init__(self) -> None:
        self.listener = ports.listening(only="127.0.0.1")
        self.port = ports.port_of(self.listener)
        self.told: list[str] = []
        self.store = Server(self.listener, KEY, self.told.append)
        self.clients: list[Client] = []

    def client(self) -> Client:
        self.clients.append(Client("127.0.0.1", self.port, key=KEY, timeout_s=30))
        return self.clients[-1]

    def stranger(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


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
    return struct.pack("!I", len(text)) + bytes(secure.MAC_BYTES) + text


def sealed(client: Client, text: bytes) -> bytes:
    """As this client would send it."""
    return struct.pack("!I", len(text)) + client._session.seal(text) + text


def everything(sock: socket.socket) -> bytes:
    """All that comes until the other end hangs up."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while more := sock.recv(1 << 16):
            data += more
    return data


def counted(served: Served, number: int) -> bool:
    """Whether so many connections are refused; waits for it."""
    return bool(wait_until("the refusals", lambda: served.store.refused == number))


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
@pytest.mark.parametrize("knows_the_key", [False, True])
def test_what_is_no_request_ends_its_own_connection_and_nothing_else(served: Served, garbage: bytes, knows_the_key: bool) -> None:
    before, odd = served.client(), served.client()
    before.set("word", "kept")
    with odd._sock if knows_the_key else served.stranger() as sock:
        with contextlib.suppress(ConnectionError):  # it may hang up before all of it is sent
            sock.sendall(sealed(odd, garbage[36:]) if knows_the_key else garbage.ljust(65, b"x"))
        assert len(everything(sock)) <= secure.NONCE_BYTES, "the store hangs up, and has said nothing but its number"

    assert before.get("word") == b"kept"
    assert served.client().get("word") == b"kept"
    assert counted(served, 1)


def test_a_request_that_never_ends_keeps_nobody_waiting(served: Served) -> None:
    client = served.client()
    client._sock.sendall(sealed(client, json.dumps(["set", "word", "x"]).encode())[:-3])

    assert served.client().add("n", 1) == 1
    assert not served.store.check(["word"])


def test_a_client_that_reads_no_answers_keeps_nobody_waiting(served: Served) -> None:
    served.store.set("large", "x" * (4 << 20))
    client = served.client()
    client._sock.sendall(b"".join(sealed(client, json.dumps(["get", "large"]).encode()) for _ in range(8)))

    assert served.client().add("n", 1) == 1


def test_who_only_looks_whether_somebody_listens_is_not_counted(served: Served) -> None:
    for _ in range(3):
        served.stranger().close()
    with served.stranger() as stranger:
        stranger.sendall(b"half a proof")
        stranger.shutdown(socket.SHUT_WR)
        everything(stranger)

    assert counted(served, 1), "but who has begun to talk is"
    assert served.told == [
        "the run's store has refused a connection from 127.0.0.1, which does not know the run's key; further ones are counted"
    ]


def test_who_holds_connections_open_keeps_nobody_out_and_is_no_stranger_for_that(served: Served) -> None:
    served.store._max_waiting = 4
    held = [served.stranger() for _ in range(12)]
    with contextlib.ExitStack() as stack:
        for sock in held:
            stack.enter_context(sock)

        assert served.client().add("n", 1) == 1
        for sock in held[:8]:
            assert len(everything(sock)) == secure.NONCE_BYTES, "the oldest of them had to go, as there may be 4"
    assert served.store.refused == 0, "they may be nodes, of which many come at once"
    assert served.told == []


def test_who_is_slow_to_prove_itself_has_to_go_and_is_no_stranger_for_that(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_server, "_PROVE_S", 0.0)
    with served.stranger() as slow:
        everything(slow)
    assert served.store.refused == 0
    assert served.told == []


def test_another_key_opens_nothing_and_says_so(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    passed = [0.0]

    def sleep(pause: float) -> None:
        passed[0] += pause

    monkeypatch.setattr(store_client, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: passed[0]))
    monkeypatch.setattr(store_client, "_PAUSE_S", 90.0)
    monkeypatch.setattr(store_client, "_PAUSE_MAX_S", 90.0)
    with pytest.raises(StoreError, match="it hangs up before it has proved that it knows the run's key"):
        Client("127.0.0.1", served.port, key="another", timeout_s=600, tell=told.append)

    assert len(told) == 1
    assert served.store.refused > 1


class NotYet:
    """Where the store will be: so many connections end before that, and `then` says how."""

    def __init__(self, count: int, then: Callable[[socket.socket], None]) -> None:
        self._listener = ports.listening(only="127.0.0.1")
        self.port = ports.port_of(self._listener)
        self._count, self._then = count, then
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        for _ in range(self._count):
            with self._listener.accept()[0] as sock:
                self._then(sock)
        Server(self._listener, KEY)


def has_to_go(sock: socket.socket) -> None:
    """As of a client of which the store has too many."""
    sock.sendall(bytes(secure.NONCE_BYTES))
    sock.recv(secure.NONCE_BYTES + secure.MAC_BYTES, socket.MSG_WAITALL)


def test_a_node_that_had_to_go_comes_again_and_raises_no_alarm() -> None:
    told: list[str] = []
    client = Client("127.0.0.1", NotYet(3, has_to_go).port, key=KEY, timeout_s=30, tell=told.append)

    assert client.add("n", 1) == 1
    assert told == []
    client.close()


def test_a_node_0_that_is_replaced_before_it_has_answered_is_waited_for() -> None:
    client = Client("127.0.0.1", NotYet(2, socket.socket.close).port, key=KEY, timeout_s=30, comes_back=True)

    assert client.add("n", 1) == 1
    client.close()


def test_a_store_that_answers_no_more_is_an_error_when_the_limit_is_over(served: Served) -> None:
    client = Client("127.0.0.1", served.port, key=KEY, timeout_s=30, answer_s=0.3)
    with served.store._lock, pytest.raises(SilentError, match="has not answered for 0 s"):
        client.add("n", 1)
    with pytest.raises(GoneError):
        client.add("n", 1)


def test_a_call_that_waits_fails_when_the_store_is_given_up(served: Served) -> None:
    client = served.client()

    def call() -> None:
        with contextlib.suppress(GoneError):
            client.add("n", 1)

    with served.store._lock:
        thread = threading.Thread(target=call)
        thread.start()
        wait_until("the call", client._lock.locked)
        client.give_up()
        thread.join(60)
        assert not thread.is_alive()


def drips(sock: socket.socket) -> None:
    """A store that answers a byte at a time, and never to the end."""
    nonce = secure.nonce()
    with contextlib.suppress(OSError):
        sock.sendall(nonce)
        hello = sock.recv(secure.NONCE_BYTES + secure.MAC_BYTES, socket.MSG_WAITALL)
        sock.sendall(secure.Session(KEY, secure.SERVER, nonce, hello[: secure.NONCE_BYTES]).proof())
        for byte in itertools.chain(struct.pack("!I", 1 << 20), itertools.repeat(0)):
            sock.sendall(bytes([byte]))
            time.sleep(0.02)


def test_an_answer_that_comes_in_drops_is_none() -> None:
    dripping = NotYet(1000, drips)  # however often it is too slow to be greeted in that time
    client = Client("127.0.0.1", dripping.port, key=KEY, timeout_s=60, answer_s=0.2)
    with pytest.raises(SilentError):
        client.add("n", 1)


def test_a_store_of_a_large_run_may_have_as_many_connections_as_that_has(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    limits = SimpleNamespace(
        RLIMIT_NOFILE=7, RLIM_INFINITY=-1, getrlimit=lambda _: (1024, 100_000), setrlimit=lambda _, limits: asked.append(limits)
    )
    monkeypatch.setattr(processes, "resource", limits)
    told: list[str] = []
    for nodes in (2, 1000, 50_000):
        Server(ports.listening(only="127.0.0.1"), KEY, told.append, nodes=nodes)

    assert [limits[1] for limits in asked] == [100_000, 100_000]
    assert asked[0][0] > 3000, "two for each node, and one more that has not proved itself"
    assert asked[1][0] == 100_000
    assert len(told) == 1
    assert "hard limit" in told[0]


class Recorder:
    """Somebody on the way between a client and the store, who sees all and can add what he likes."""

    def __init__(self, served: Served) -> None:
        self.listener = ports.listening(only="127.0.0.1")
        self.sent: list[bytes] = []
        self.answers: list[bytes] = []
        threading.Thread(target=self._run, args=(served,), daemon=True).start()
        self.client = Client("127.0.0.1", ports.port_of(self.listener), key=KEY, timeout_s=30)

    def _run(self, served: Served) -> None:
        self.near = self.listener.accept()[0]
        self.far = served.stranger()
        for one, other, seen in ((self.near, self.far, self.sent), (self.far, self.near, self.answers)):
            threading.Thread(target=self._pass_on, args=(one, other, seen), daemon=True).start()

    @staticmethod
    def _pass_on(one: socket.socket, other: socket.socket, seen: list[bytes]) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                seen.append(data)
                other.sendall(data)

    def close(self) -> None:
        for sock in (self.listener, self.near, self.far, self.client):
            sock.close()


def test_what_was_said_once_cannot_be_said_again(served: Served) -> None:
    with contextlib.closing(Recorder(served)) as between:
        between.client.add("n", 1)

        with served.stranger() as later:  # all of it on a new connection
            with contextlib.suppress(ConnectionError):
                later.sendall(b"".join(between.sent))
            everything(later)
        assert counted(served, 1)
        between.far.sendall(between.sent[-1])  # the last request once more, on the old one
        assert counted(served, 2)

    assert served.store.add("n", 0) == 1


def test_a_client_believes_no_answer_but_the_stores(served: Served) -> None:
    with contextlib.closing(Recorder(served)) as between:
        between.client.set("word", "true")
        assert between.client.get("word") == b"true"
        between.near.sendall(between.answers[-1])  # this once more is what comes first now

        with pytest.raises(StoreError, match="a message was changed on its way"):
            between.client.check(["other"])


@settings(max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage=st.binary(max_size=300), at=st.integers(0, 200), flip=st.integers(1, 255))
def test_no_bytes_but_the_keys_owners_reach_a_value(served: Served, garbage: bytes, at: int, flip: int) -> None:
    """Any bytes from the start, behind a proof of somebody else, and a true client's words with one bit or more changed."""
    served.store.set("word", "kept")
    honest = served.client()
    request = bytearray(sealed(honest, json.dumps(["set", "word", "x"]).encode()))
    request[at % len(request)] ^= flip
    with served.stranger() as stranger, contextlib.suppress(ConnectionError):
        stranger.sendall(garbage)
        stranger.sendall(bytes(request))
    with honest._sock as sock, contextlib.suppress(ConnectionError):
        sock.sendall(bytes(request))
        sock.shutdown(socket.SHUT_WR)
        assert everything(sock) == b""

    assert served.client().get("word") == b"kept"


def test_a_store_that_is_gone_or_never_there_is_an_error_that_says_so() -> None:
    with ports.reserve() as held:
        port = ports.port_of(held)
        with pytest.raises(StoreError, match=f"127.0.0.1:{port} was not reached in 0 s"):
            Client("127.0.0.1", port, key=KEY, timeout_s=0.1)
        held.listen()

        def hang_up() -> None:
            held.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(GoneError, match="the run's store is gone"):
            Client("127.0.0.1", port, key=KEY, timeout_s=30)
    between = Recorder(Served())
    between.close()
    with pytest.raises(StoreError, match="the run's store is gone"):
        between.client.add("n", 1)


def test_a_node_that_is_early_waits_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    with ports.reserve() as held:
        pauses: list[float] = []

        def sleep(pause: float) -> None:
            pauses.append(pause)
            if len(pauses) == 5:
                held.listen()
                Server(held, KEY)

        monkeypatch.setattr(store_client, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
        Client("127.0.0.1", ports.port_of(held), key=KEY, timeout_s=60).close()

    assert len(pauses) == 5
    assert pauses == sorted(pauses), "the longer it takes, the less often it is asked"
    assert pauses[0] < pauses[-1]


CUT = """
import subprocess, sys
from launcher.agent.network import ports
from launcher.agent.store import client, interface, server
key = "k" * 64
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
listener = ports.listening(only="127.0.0.1")
served = server.Server(listener, key, host_s=1.0)
near, idle = [client.Client("127.0.0.1", ports.port_of(listener), key=key, timeout_s=30, host_s=1.0) for _ in range(2)]
idle.leave("gone", "ended", "unreachable")
near.add("n", 1)
subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
try:
    while True:
        near.add("n", 1)
except interface.GoneError as error:
    print(type(error).__name__, error)
while not served.check(["gone"]):
    pass
print(served.get("gone").decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a network of its own")
def test_a_network_that_is_cut_is_known_at_both_ends_long_before_silence_counts() -> None:
    """Also where nothing was on its way: the node that waits is asked by its kernel."""
    argv = ["unshare", "--net", sys.executable, "-c", CUT]
    root = Path(__file__).parents[2]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=False, timeout=120)

    assert done.returncode == 0, done.stderr
    client, server = done.stdout.splitlines()
    assert client.startswith("UnreachableError the run's store has not answered for 1 s: ")
    assert server == "unreachable"
