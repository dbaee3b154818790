"""Finding node 0: by name, by the port that it announces, and never in a worker group that is ending."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.group import process
from launcher.agent.job import Job
from launcher.agent.network import ports, routes
from launcher.agent.network.dns_search import Beacon, Search
from testbed import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable


def a_listener() -> tuple[Any, int]:
    sock = ports.listening()
    return sock, ports.port_of(sock)


def some_ports(count: int) -> list[int]:
    """Ports that are free, or were a moment ago."""
    held = [ports.reserve() for _ in range(count)]
    found = [ports.port_of(sock) for sock in held]
    for sock in held:
        sock.close()
    return found


def test_a_name_is_waited_for_and_the_wait_is_described() -> None:
    nobody = Search("no-such-pod.invalid", port=1)
    (closed,) = some_ports(1)
    silent = Search("localhost", port=closed)

    wait_until("the description", lambda: f"port {closed}" in silent.waits_for)
    assert silent.waits_for.startswith("node 0 to answer at localhost (")
    assert nobody.waits_for == "DNS to know no-such-pod.invalid"
    assert nobody.found is None


def test_node_0_is_found_by_its_name_once_it_listens() -> None:
    sock, port = a_listener()
    with closing(sock):
        search = Search("localhost", port=port)
        assert wait_until("node 0", lambda: search.found) == ("localhost", port)


def test_of_two_runs_on_one_host_each_finds_its_own_port() -> None:
    candidates = some_ports(4)
    first, second = a_listener(), a_listener()
    with closing(first[0]), closing(second[0]):
        Beacon(candidates, "second", second[1] + 1, "of somebody who knows the id alone")
        Beacon(candidates, "first", first[1], "key 1")
        Beacon(candidates, "second", second[1], "key 2")

        keys = {"first": "key 1", "second": "key 2", "third": "key 3"}
        searches = {run: Search("localhost", beacons=candidates, run=run, key=key) for run, key in keys.items()}
        assert wait_until("the second", lambda: searches["second"].found) == ("localhost", second[1])
        assert wait_until("the first", lambda: searches["first"].found) == ("localhost", first[1])
        assert searches["third"].found is None


def bomb(sock: socket.socket) -> None:
    """A text that no JSON parser gets through."""
    sock.sendall(b"[" * 100_000)


def drop(sock: socket.socket) -> None:
    """A line that never ends."""
    while True:
        sock.sendall(b" ")
        time.sleep(0.5)


def garbage(sock: socket.socket) -> None:
    sock.sendall(b'{"run": "r", "port": [1e999], "proof": {"\xff": null}}\n')


def silence(sock: socket.socket) -> None:
    sock.recv(1)


@pytest.mark.parametrize("says", [bomb, drop, garbage, silence])
def test_strangers_at_a_beacons_ports_neither_end_nor_stall_the_search(says: Callable[[socket.socket], None]) -> None:
    strangers = [a_listener() for _ in range(20)]
    for sock, _ in strangers:
        threading.Thread(target=answers, args=(sock, says), daemon=True).start()
    candidates = [*(port for _, port in strangers), *some_ports(1)]
    Beacon(candidates, "r", 7, "the key")

    search = Search("localhost", beacons=candidates, run="r", key="the key")

    assert wait_until("node 0", lambda: search.found) == ("localhost", 7)
    for sock, _ in strangers:
        sock.shutdown(socket.SHUT_RDWR)  # wakes its thread
        sock.close()


def answers(listener: socket.socket, says: Callable[[socket.socket], None]) -> None:
    with suppress(OSError):  # closed
        while True:
            sock = listener.accept()[0]
            with suppress(OSError), sock:
                says(sock)


class FakeStore:
    """As much of a store as is used here."""

    def __init__(self, **members: str) -> None:
        self._values = members

    def compare_set(self, key: str, _expected: str, wanted: str) -> bytes:
        return self._values.setdefault(key, wanted).encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def close(self) -> None:
        self.closed = True


def test_a_store_in_which_our_place_is_taken_is_left_for_the_next_one() -> None:
    job = Job(
        run="r", command=["x"], kind="script", cwd="/", env={}, directory="/", rendezvous={}, min_nodes=4, max_nodes=4
    )
    old, new = FakeStore(**{"member/3": "the one before"}), FakeStore(**{"member/0": "another"})
    stores, told = [old, old, new], []

    class Link:
        def event(self, name: str, **fields: Any) -> None:
            told.append((name, fields["what"]))

    link: Any = Link()
    setup: Any = {"node_rank": 3, "host": "n3"}
    found = process._present_store(job, setup, link, lambda: stores.pop(0))

    assert found is new
    assert old.closed
    assert told == [("waiting", "the nodes of the previous attempt to exit")]


@pytest.mark.parametrize("family", ["127.0.0.1", "::1"])
def test_the_route_to_a_host_is_found_by_its_name_in_either_address_family(
    monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    monkeypatch.setattr(routes, "resolve", lambda name: {"node-0": [family]}.get(name, []))

    assert routes.towards("node-0") == routes.towards(family) == (None, family), (
        "the loopback is not an interface for peers"
    )
