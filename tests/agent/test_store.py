"""The run's store: what several nodes and threads rely on, and how it is missed."""

from __future__ import annotations

import contextlib
import hmac
import itertools
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.agent.network import ports, secure
from launcher.agent.store import client as store_client
from launcher.agent.store.client import Client
from launcher.agent.store.interface import GoneError, Prefixed, SilentError, Store, StoreError
from launcher.agent.store.server import Server
from launcher.agent.system import processes
from testbed import wait_until
from tests.agent.stores import KEY, NotYet, Recorder, Served


def each(served: Served) -> list[Store]:
    """Every way to a store, each to its own part."""
    return [served.store, Prefixed("at node 0", served.store), Prefixed("round/0", served.client())]


def test_the_calls_do_what_torchs_do_locally_remotely_and_with_a_prefix(served: Served) -> None:
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


def test_concurrent_additions_are_exact_and_one_compare_set_wins(served: Served) -> None:
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


def turned_away(sock: socket.socket) -> None:
    """As if the store had too many clients."""
    sock.sendall(bytes(secure.NONCE_BYTES))
    sock.recv(secure.NONCE_BYTES + secure.MAC_BYTES, socket.MSG_WAITALL)


def test_a_node_that_was_turned_away_connects_again_and_raises_no_alarm() -> None:
    told: list[str] = []
    client = Client("127.0.0.1", NotYet(3, turned_away).port, key=KEY, timeout_s=30, tell=told.append)

    assert client.add("n", 1) == 1
    assert told == []
    client.close()


def test_a_node_0_that_is_replaced_before_it_has_answered_is_waited_for() -> None:
    client = Client("127.0.0.1", NotYet(2, socket.socket.close).port, key=KEY, timeout_s=30, comes_back=True)

    assert client.add("n", 1) == 1
    client.close()


def test_a_store_that_stops_answering_is_an_error_after_the_limit(served: Served) -> None:
    client = Client("127.0.0.1", served.port, key=KEY, timeout_s=30, answer_s=0.3)
    with served.store._values.lock, pytest.raises(SilentError, match="has not answered for 0 s"):
        client.add("n", 1)
    with pytest.raises(GoneError):
        client.add("n", 1)


def test_a_call_that_waits_fails_when_the_store_is_given_up(served: Served) -> None:
    client = served.client()

    def call() -> None:
        with contextlib.suppress(GoneError):
            client.add("n", 1)

    with served.store._values.lock:
        thread = threading.Thread(target=call)
        thread.start()
        wait_until("the call", lambda: len(client._exchange._calls) == 1)
        client.give_up()
        thread.join(60)
        assert not thread.is_alive()


def test_nodes_connect_although_more_came_at_once_than_the_kernel_of_node_0_remembers() -> None:
    """Its queue is short on old systems (net.core.somaxconn is 128), and with SYN cookies it forgets who came."""
    listener = ports.listening(only="127.0.0.1")
    listener.listen(2)
    clients: list[Client] = []
    errors: list[StoreError] = []

    def connect() -> None:
        try:
            clients.append(Client("127.0.0.1", ports.port_of(listener), key=KEY, timeout_s=60, host_s=6))
        except StoreError as error:
            errors.append(error)

    threads = [threading.Thread(target=connect) for _ in range(24)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    store = Server(listener, KEY)
    for thread in threads:
        thread.join(90)

    assert not errors
    assert {client.add("n", 1) for client in clients} == {*range(1, 25)}
    assert store.refused == 0
    for client in clients:
        client.close()


def drips(sock: socket.socket) -> None:
    """A store that answers a byte at a time and never finishes."""
    nonce = secure.nonce()
    with contextlib.suppress(OSError):
        sock.sendall(nonce)
        hello = sock.recv(secure.NONCE_BYTES + secure.MAC_BYTES, socket.MSG_WAITALL)
        sock.sendall(secure.Session(KEY, secure.SERVER, nonce, hello[: secure.NONCE_BYTES]).proof())
        for byte in itertools.chain(struct.pack("!I", 1 << 20), itertools.repeat(0)):
            sock.sendall(bytes([byte]))
            time.sleep(0.02)


def test_an_answer_that_only_trickles_in_counts_as_silence() -> None:
    dripping = NotYet(1000, drips)  # enough, however often its greeting takes too long
    client = Client("127.0.0.1", dripping.port, key=KEY, timeout_s=60, answer_s=0.2)
    with pytest.raises(SilentError):
        client.add("n", 1)


def test_the_store_of_a_large_run_may_have_connections_of_all_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    limits = SimpleNamespace(
        RLIMIT_NOFILE=7,
        RLIM_INFINITY=-1,
        getrlimit=lambda _: (1024, 100_000),
        setrlimit=lambda _, limits: asked.append(limits),
    )
    monkeypatch.setattr(processes, "resource", limits)
    told: list[str] = []
    for nodes in (2, 1000, 50_000):
        Server(ports.listening(only="127.0.0.1"), KEY, told.append, nodes=nodes)

    assert [limits[1] for limits in asked] == [100_000, 100_000]
    assert asked[0][0] > 2000, "one for each node, and one more that has not proved itself"
    assert asked[1][0] == 100_000
    assert len(told) == 1
    assert "hard limit" in told[0]


def test_a_store_that_has_exited_or_was_never_there_is_an_error_that_says_so() -> None:
    with ports.reserve() as held:
        port = ports.port_of(held)
        with pytest.raises(StoreError, match=f"127.0.0.1:{port} was not reached in 0 s"):
            Client("127.0.0.1", port, key=KEY, timeout_s=0.1)
        held.listen()

        def end() -> None:
            connection, _ = held.accept()
            held.close()
            connection.close()

        threading.Thread(target=end, daemon=True).start()
        with pytest.raises(GoneError, match="the connection to the run's store is lost"):
            Client("127.0.0.1", port, key=KEY, timeout_s=30)
    between = Recorder(Served())
    between.close()
    with pytest.raises(StoreError, match="the connection to the run's store is lost"):
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
near, idle = [
    client.Client("127.0.0.1", ports.port_of(listener), key=key, timeout_s=30, host_s=1.0) for _ in range(2)
]
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
def test_a_network_that_is_cut_is_noticed_at_both_ends_long_before_silence_counts() -> None:
    """Even on an idle connection, which the kernel probes."""
    argv = ["unshare", "--net", sys.executable, "-c", CUT]
    root = Path(__file__).parents[2]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=False, timeout=120)

    assert done.returncode == 0, done.stderr
    client, server = done.stdout.splitlines()
    assert client.startswith("UnreachableError the run's store has not answered for 1 s: ")
    assert server == "unreachable"


@pytest.mark.parametrize("key_bytes", [0, 1, 63, 64, 65, 200])
@pytest.mark.parametrize("size", [0, 1, 64, 1000, 1 << 15])
def test_messages_are_proved_by_the_hmac_of_the_standard(key_bytes: int, size: int) -> None:
    key, data = b"k" * key_bytes, bytes(range(256)) * (size // 256) + b"x" * (size % 256)

    assert secure.mac(key, data[:3], data[3:]) == hmac.digest(key, data, "sha256")
