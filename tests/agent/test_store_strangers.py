"""Strangers, broken clients and recorded messages at the run's store harm only their own connection."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.agent.network import secure
from launcher.agent.store import client as store_client
from launcher.agent.store import server as store_server
from launcher.agent.store.client import Client
from launcher.agent.store.interface import StoreError
from testbed import wait_until
from tests.agent.stores import Recorder, Served, everything, sealed


def frame(text: bytes) -> bytes:
    return struct.pack("!I", len(text)) + bytes(secure.MAC_BYTES) + text


def counted(served: Served, number: int) -> bool:
    """Whether that many connections are refused; waits for it."""
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
def test_an_invalid_request_ends_its_own_connection_and_nothing_else(
    served: Served, garbage: bytes, knows_the_key: bool
) -> None:
    before, odd = served.client(), served.client()
    before.set("word", "kept")
    with odd._sock if knows_the_key else served.stranger() as sock:
        with contextlib.suppress(ConnectionError):  # it may hang up before all of it is sent
            sock.sendall(sealed(odd, garbage[36:]) if knows_the_key else garbage.ljust(65, b"x"))
        assert len(everything(sock)) <= secure.NONCE_BYTES, "the store hangs up, and has sent nothing but its nonce"

    assert before.get("word") == b"kept"
    assert served.client().get("word") == b"kept"
    assert counted(served, 1)


def test_a_request_that_never_ends_keeps_no_other_client_waiting(served: Served) -> None:
    client = served.client()
    client._sock.sendall(sealed(client, json.dumps(["set", "word", "x"]).encode())[:-3])

    assert served.client().add("n", 1) == 1
    assert not served.store.check(["word"])


def test_a_client_that_reads_no_answers_keeps_no_other_client_waiting(served: Served) -> None:
    served.store.set("large", "x" * (4 << 20))
    client = served.client()
    client._sock.sendall(b"".join(sealed(client, json.dumps(["get", "large"]).encode()) for _ in range(8)))

    assert served.client().add("n", 1) == 1


def test_a_connection_that_sends_nothing_is_not_counted(served: Served) -> None:
    for _ in range(3):
        served.stranger().close()
    with served.stranger() as stranger:
        stranger.sendall(b"half a proof")
        stranger.shutdown(socket.SHUT_WR)
        everything(stranger)

    assert counted(served, 1), "but one that has begun to talk is"
    assert served.told == [
        (
            "the run's store has refused a connection from 127.0.0.1, which does not know the run's key; "
            "further ones are counted"
        )
    ]


def test_connections_that_are_held_open_keep_no_node_out_and_do_not_count_as_strangers(served: Served) -> None:
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


def test_a_connection_that_is_slow_to_prove_itself_is_closed_and_does_not_count_as_a_stranger(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_server, "_PROVE_S", 0.0)
    with served.stranger() as slow:
        everything(slow)
    assert served.store.refused == 0
    assert served.told == []


def test_another_key_opens_nothing_and_is_reported(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_recorded_messages_cannot_be_replayed(served: Served) -> None:
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
        between.near.sendall(between.answers[-1])  # the first thing that comes now is this answer again

        with pytest.raises(StoreError, match="a message was changed on its way"):
            between.client.check(["other"])


@settings(max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage=st.binary(max_size=300), at=st.integers(0, 200), flip=st.integers(1, 255))
def test_only_bytes_of_the_keys_owner_reach_a_value(served: Served, garbage: bytes, at: int, flip: int) -> None:
    """Any bytes from the start, behind another's proof, and a genuine client's messages with changed bits."""
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
