"""Calls of the run's store that are answered later: when something has changed, and to all who wait for it."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.store.client import Client
from launcher.agent.store.interface import GONE, GoneError, Known, Prefixed, Store
from testbed import wait_until
from tests.agent.stores import KEY, sealed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.stores import Served

LONG_S = 60.0


def is_waited_for(served: Served, key: str) -> Callable[[], bool]:
    """Whether a client waits for that key."""
    return lambda: key in served.store._values._waits


def until_met(store: Store, known: dict[str, Known]) -> list[bytes | None]:
    """As agents wait: node 0 itself is answered after a moment, in any case."""
    values = store.wait(known, LONG_S)
    while values == [None]:
        values = store.wait(known, LONG_S)
    return values


def test_a_wait_ends_when_a_key_is_there_has_another_value_or_is_as_high(served: Served) -> None:
    setter: Store = served.client()
    ways: list[Store] = [served.store, Prefixed("a", served.client()), Prefixed("b", Prefixed("c", served.store))]
    for way in ways:
        with ThreadPoolExecutor() as pool:
            found = pool.submit(until_met, way, {"a": None})
            wait_until("the wait", is_waited_for(served, way.name_of("a")))
            setter.set(way.name_of("a"), "1")
            assert found.result(LONG_S) == [b"1"]
        assert way.wait({"a": None, "b": False}, LONG_S) == [b"1", None], "it is over before it begins"
        assert way.wait({"a": "2"}, LONG_S) == [b"1"]
        setter.add(way.name_of("n"), 1)
        assert way.wait({"n": 2, "a": "1"}, 0.01) == [b"1", b"1"], "nothing has changed"
        setter.add(way.name_of("n"), 1)
        assert way.wait({"n": 2, "a": "1"}, LONG_S) == [b"2", b"1"]


def test_a_number_wakes_those_who_wait_for_it_only_when_it_is_as_high(served: Served) -> None:
    client, setter = served.client(), served.client()
    with ThreadPoolExecutor() as pool:
        found = pool.submit(client.wait, {"n": 3}, LONG_S)
        wait_until("the wait", is_waited_for(served, "n"))
        for _ in range(2):
            setter.add("n", 1)
        setter.set("other", "x")
        assert is_waited_for(served, "n")()
        setter.multi_set({"n": "3", "m": "1"})
        assert found.result(LONG_S) == [b"3"]


def test_all_who_wait_for_one_key_are_answered_by_node_0_itself(served: Served) -> None:
    clients = [served.client() for _ in range(60)]
    with ThreadPoolExecutor(len(clients)) as pool:
        found = [pool.submit(client.wait, {"verdict": None, f"own/{at}": None}, LONG_S) for at, client in
                 enumerate(clients)]  # fmt: skip
        wait_until("the waits", lambda: len(served.store._values._waits) == 1 + len(clients))
        served.store.compare_set("verdict", "", "fail")
        assert [each.result(LONG_S) for each in found] == [[b"fail", None]] * len(clients)
    assert served.store._values._waits == {}


def test_a_wait_makes_way_for_other_threads_of_its_node_and_goes_on(served: Served) -> None:
    client = served.client()
    with ThreadPoolExecutor() as pool:
        found = pool.submit(client.wait, {"a": None}, LONG_S)
        wait_until("the wait", is_waited_for(served, "a"))
        (wait,) = served.store._values._waits["a"][None]
        assert client.add("n", 1) == 1
        assert wait in served.store._values._waits["a"][None]
        client.set("a", "1")
        assert found.result(LONG_S) == [b"1"]


def test_threads_wait_over_one_connection_and_each_is_answered_for_its_own_keys(served: Served) -> None:
    client, setter = served.client(), served.client()
    wanted: list[dict[str, Known]] = [{"a": None}, {"b": None, "a": False}, {"n": 2}, {"n": 4}, {"c": None}]
    with ThreadPoolExecutor() as pool:
        found = [pool.submit(client.wait, each, LONG_S) for each in wanted]
        wait_until("the waits", lambda: served.store._values._waits.keys() == {"a", "b", "n", "c"})
        ends: list[tuple[int, str, str, list[bytes | None]]] = [
            (0, "a", "1", [b"1"]),
            (2, "n", "3", [b"3"]),
            (1, "b", "2", [b"2", b"1"]),
            (3, "n", "4", [b"4"]),
        ]
        for at, key, value, answer in ends:
            setter.set(key, value)
            assert found[at].result(LONG_S) == answer
        wait_until("the rest", lambda: served.store._values._waits.keys() == {"c"})
        setter.set("c", "5")
        assert found[4].result(LONG_S) == [b"5"]


def test_threads_may_know_different_values(served: Served) -> None:
    client, setter = served.client(), served.client()
    setter.set("a", "2")
    with ThreadPoolExecutor() as pool:
        late = pool.submit(client.wait, {"a": "2"}, LONG_S)
        wait_until("the wait", is_waited_for(served, "a"))
        assert client.wait({"a": "1"}, LONG_S) == client.wait({"a": None}, LONG_S) == [b"2"]
        numbers = pool.submit(client.wait, {"a": 9}, LONG_S)
        setter.set("a", "8")
        assert late.result(LONG_S) == [b"8"]
        setter.set("a", "9")
        assert numbers.result(LONG_S) == [b"9"]


def test_a_long_wait_is_not_taken_for_a_silent_store(served: Served) -> None:
    told: list[float] = []
    client = Client("127.0.0.1", served.port, key=KEY, timeout_s=30, answer_s=3)
    client.tell_silence(2, lambda silent_s, _: told.append(silent_s))
    try:
        assert client.wait({"a": None}, LONG_S) == [None]
        served.store.set("a", "1")
        assert client.wait({"a": None}, LONG_S) == [b"1"]
    finally:
        client.close()
    assert not told


def test_each_thread_waits_for_its_own_time(served: Served) -> None:
    client = served.client()
    with ThreadPoolExecutor() as pool:
        long = pool.submit(client.wait, {"a": None}, LONG_S)
        wait_until("the wait", is_waited_for(served, "a"))
        assert client.wait({"b": None}, 0.05, ("sign/1", "6 idle")) == [None]
        assert client.get("sign/1") == b"6 idle"
        assert not long.done()
        client.wake()
        assert long.result(LONG_S) == [None], "all threads are woken"
    client.set("b", "1")
    assert client.wait({"b": None}, LONG_S) == [b"1"]


def test_a_thread_that_waits_again_and_again_keeps_no_other_thread_waiting(served: Served) -> None:
    client, over = served.client(), threading.Event()

    def waits() -> None:
        while not over.is_set():
            client.wait({"a": None}, LONG_S)

    with ThreadPoolExecutor() as pool:
        thread = pool.submit(waits)
        for number in range(100):
            assert client.add("n", 1) == number + 1
        over.set()
        client.wake()
        thread.result(LONG_S)


def test_a_wait_can_be_ended_before_it_has_begun_and_the_connection_is_used_on(served: Served) -> None:
    client = served.client()
    client.wake()
    assert client.wait({"a": None}, LONG_S) == [None]
    client.set("a", "1")
    assert client.wait({"a": None}, LONG_S, ("sign/1", "5 busy")) == [b"1"]
    assert client.get("sign/1") == b"5 busy"


def test_a_wait_fails_when_the_store_is_given_up(served: Served) -> None:
    client = served.client()
    with ThreadPoolExecutor() as pool:
        found = [pool.submit(client.wait, {key: None}, LONG_S) for key in ("a", "b")]
        wait_until("the waits", lambda: served.store._values._waits.keys() == {"a", "b"})
        client.give_up()
        for each in found:
            with pytest.raises(GoneError, match="the connection to the run's store is lost"):
                each.result(LONG_S)
    wait_until("the store to forget it", lambda: served.store._values._waits == {})


def test_many_threads_use_one_connection_at_the_same_time(served: Served) -> None:
    """Each adds to a number of its own, and waits until its neighbour's is as high."""
    client, threads, rounds = served.client(), 12, 40

    def work(own: int) -> None:
        for number in range(1, rounds + 1):
            assert client.add(f"n/{own}", 1) == number
            (found,) = client.wait({f"n/{(own + 1) % threads}": number}, LONG_S)
            assert found is not None
            assert int(found) >= number

    with ThreadPoolExecutor(threads) as pool:
        for each in [pool.submit(work, own) for own in range(threads)]:
            each.result(LONG_S)
    assert served.store._values._waits == {}


def test_a_client_with_too_many_waits_is_turned_away(served: Served) -> None:
    odd = served.client()
    odd._exchange._send([["wait", number, LONG_S, {"a": None}, "", ""] for number in range(70)])
    wait_until("the refusal", lambda: served.store.refused == 1)
    assert served.store._values._waits == {}


def test_node_0_learns_that_a_connection_has_closed_while_it_waited(served: Served) -> None:
    client = served.client()
    client.leave("gone/1", "ended x", "unreachable x")
    client._exchange._send([["wait", 0, LONG_S, {"a": None}, "", ""]])
    wait_until("the wait", is_waited_for(served, "a"))

    client.close()

    assert until_met(served.store, {GONE: 1}) == [b"1"]
    assert served.store.get("gone/1") == b"ended x"
    assert served.store._values._waits == {}


@pytest.mark.parametrize(
    "request_",
    [
        ["wait"],
        ["wait", 0, 1.0, ["a"], "", ""],
        ["wait", 0, 1.0, {"a": True}, "", ""],
        ["wait", 0, 1.0, {"a": [1]}, "", ""],
        ["wait", 0, "long", {"a": None}, "", ""],
        ["wait", "first", 1.0, {"a": None}, "", ""],
    ],
)
def test_an_invalid_wait_ends_its_own_connection_and_leaves_nothing(served: Served, request_: Any) -> None:
    odd, other = served.client(), served.client()
    odd._sock.sendall(sealed(odd, json.dumps(request_).encode()))
    wait_until("the refusal", lambda: served.store.refused == 1)

    other.set("a", "1")
    assert other.get("a") == b"1"
    assert served.store._values._waits == {}
