"""The stream for people has everything in it: whatever workers write, it is restored as it was."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.agent.protocol import LineTagger, encode_event
from launcher.agent.stream import plain, sink
from launcher.agent.stream.sink import Item, Sink

if TYPE_CHECKING:
    from pathlib import Path

# What the lines of a stream and its marks consist of, next to other bytes.
PARTS = [
    b" ",
    b"\t",
    b"\n",
    b"\r",
    b"\0",
    b"\xff",
    b"[5] ",
    b"0.0| ",
    b"2.5!+",
    b"distlaunch: ",
    b'{"event":',
    b"=",
    b"x",
]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=60).map(b"".join)
NAMES = st.text("ab_.- é", max_size=4)
WORDS = st.sampled_from(["true", "nullable", "/a/b:1", "a b", "1", "", "-", "é\n\"'", "a=b", "NaN"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)

EACH = settings(max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def restored(text: bytes, node: int) -> bytes:
    return b"".join(plain.decode(line, node) + b"\n" for line in text.split(b"\n")[:-1])


@EACH
@given(TEXTS, st.integers(1, 9), st.sampled_from(["stdout", "stderr"]), st.sampled_from([(0, 1), (5, 8)]))
def test_every_line_is_restored_and_shown_as_it_was_printed(
    text: bytes, size: int, stream: str, rank_and_world: tuple[int, int]
) -> None:
    rank, world_size = rank_and_world
    tagger, encoder = LineTagger(2, rank, stream), plain.Encoder()
    begun = encode_event("rendezvous", 2, world_size=world_size)
    pieces = [tagger.feed(text[start : start + size]) for start in range(0, len(text), size)]
    whole = begun + b"".join(pieces) + tagger.flush() + encode_event("done", 2, result="success", cause=None)

    shown = encoder.encode(whole)

    assert restored(shown, 2) == whole
    assert shown.count(b"\n") == whole.count(b"\n")
    for printed, line in zip(text.split(b"\n")[:-1], shown.split(b"\n")[1:], strict=False):
        assert printed in line
        assert rank or not line.startswith(b"[0] ") or printed.startswith((b"[5] ", b"0.0| ", b"2.5!+"))


@EACH
@given(st.dictionaries(st.sampled_from(["message", "cause", "hosts"]), VALUES, max_size=3))
def test_every_event_is_restored(fields: dict[str, Any]) -> None:
    event = encode_event("failure", 3, **fields)

    shown = plain.Encoder().encode(event)

    assert shown.startswith(b"distlaunch: failure ")
    assert restored(shown, 3) == event


@pytest.mark.parametrize(
    "line",
    [
        b'{"event":"done","time":1.0,"node":0}',  # of an agent of an earlier version, like the next two
        b"0.0| a line  ",
        b"0.0!+a piece\t\t",
        b"exec: python3: not found",
        b"[5] cut off ",
        b"distlaunch: nonsense =",
        b"distlaunch: done time=1 node.x=2 node=3 node.x=4",
        b"distlaunch: done " + b"a." * 5000 + b"a=1 time=1 node=0",
        b"distlaunch: ",
        b"",
    ],
)
def test_other_lines_stay_as_they_are(line: bytes) -> None:
    assert plain.decode(line, 0) == line


def test_a_line_that_was_begun_is_finished_when_a_reader_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the container runtime restarts: lines are whole and in order, and those that are missing are counted."""
    monkeypatch.setattr(sink, "_AGAIN_S", 0.0)
    monkeypatch.setattr(sink, "_PIECE_BYTES", 1000)
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    stream = Sink(os.open(tmp_path / "log", os.O_WRONLY), 0, 0, str(tmp_path), plain.Encoder())
    os.set_blocking(reader, True)
    lines = [b"line %d " % number + b"x" * 990 for number in range(300)]
    read: list[bytes] = []

    def leave() -> None:
        while sum(map(len, read)) < 70_000:
            read.append(os.read(reader, 700))
        os.close(reader)

    leaving = threading.Thread(target=leave)
    leaving.start()
    stream.put([Item(b"".join(b"0.1| %b\n" % line for line in lines), b"0.1|")])
    leaving.join()
    back = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(back, True)
    rest: list[bytes] = []
    reading = threading.Thread(target=lambda: rest.extend(iter(lambda: os.read(back, 65536), b"")))
    reading.start()
    stream.put([Item(encode_event("done", 0, result="success"))])
    stream.end()
    os.close(stream._fd)
    reading.join()
    os.close(back)

    shown = b"".join([*read, *rest]).split(b"\n")[:-1]
    *kept, lost, done = shown
    assert kept == [b"[1] " + line for line in lines[: len(kept)]]
    assert 70 <= len(kept) < 300
    assert lost.startswith(b"distlaunch: lines_lost lines=%d ranks=[1] reason=" % (300 - len(kept)))
    assert done.startswith(b"distlaunch: done result=success lines_lost=") or b" lines_lost=" in done
