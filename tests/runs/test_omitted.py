"""Of ranks that are not shown, long output is not even read; nothing else is missing, whenever it is looked for."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from launcher.agent.protocol import LineTagger, encode_event
from launcher.backends import _files
from launcher.backends._files import FileStream
from launcher.runs.reader import MarkedLines, StreamReader
from tests.runs.test_reader import block, contents, stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from launcher.agent.protocol import Record


def lines(rank: int, count: int) -> bytes:
    """A worker's lines, in the stream of node 1."""
    return LineTagger(1, rank, "stdout").feed(b"".join(b"%d of %d\n" % (number, rank) for number in range(count)))


def read(files: FileStream, reader: StreamReader) -> tuple[list[Record], int]:
    """All that can be read now: the records, and how many bytes were given to the reader."""
    found: list[Record] = []
    size = 0
    while chunks := files.read(0.0):
        for chunk in chunks:
            size += len(chunk.data)
            marked = reader.feed_marked(chunk.data, more=chunk.more)
            found += [record.output() if isinstance(record, MarkedLines) else record for record in marked]
    return found, size


@contextmanager
def opened(tmp_path: Path, wanted: frozenset[int]) -> Iterator[tuple[Path, FileStream]]:
    """A stream's file, and its reader."""
    path = tmp_path / "nodes/1/stream"
    path.parent.mkdir(parents=True)
    path.touch()
    files = FileStream(tmp_path, [1], {})
    files.omit(wanted)
    yield path, files
    files.close()


@pytest.mark.parametrize(("seed", "pass_bytes"), [(0, 1 << 26), (1, 1 << 26), (2, 1), (3, 100_000), (4, 1 << 20)])
@pytest.mark.parametrize("wanted", [frozenset({0}), frozenset({1, 3}), frozenset[int]()])
def test_what_is_wanted_is_whole_however_the_file_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, pass_bytes: int, wanted: frozenset[int]
) -> None:
    """Also if it is read in many steps (`pass_bytes`)."""
    monkeypatch.setattr(_files, "_PASS_BYTES", pass_bytes)
    rng = random.Random(seed)
    data = stream(seed)
    for number in range(40):
        data += block(lines(rng.randrange(4), rng.choice([3000, 9000, 20_000])), number, rng.random() * 0.75)
    reader = StreamReader(wanted, 1)
    found: list[Record] = []
    begin = 0

    with opened(tmp_path, wanted) as (path, files), path.open("ab", buffering=0) as file:
        while begin < len(data):
            file.write(data[begin : (begin := begin + rng.choice([5000, 50_000, 1_300_000, 4_000_000]))])
            found += read(files, reader)[0]
    found += reader.close()

    whole = StreamReader(wanted, 1)
    assert contents(found, wanted) == contents([*whole.feed(data), *whole.close()], wanted)


def test_blocks_of_others_are_not_read(tmp_path: Path) -> None:
    events = [encode_event("heartbeat", 1, workers=number) for number in range(64)]
    data = [block(lines(number % 8, 20_000), number, 0) + events[number] for number in range(64)]

    with opened(tmp_path, frozenset({0})) as (path, files):
        path.write_bytes(b"".join(data))
        found, size = read(files, StreamReader(frozenset({0}), 1))

    assert contents(found, None) == contents([*StreamReader(frozenset({0})).feed(b"".join(data))], None)
    assert len(contents(found, None)[1]) == len(events)
    own = sum(map(len, data[::8]))
    assert own <= size < 1.5 * own


def test_a_block_whose_end_is_not_there_is_read(tmp_path: Path) -> None:
    """Its agent was killed, or writes it right now."""
    own, other = block(lines(0, 9000), 1, 0), block(lines(1, 90_000), 2, 0)
    reader = StreamReader(frozenset({0}), 1)

    with opened(tmp_path, frozenset({0})) as (path, files):
        path.write_bytes(own + other[:-9])
        _, size = read(files, reader)
        with path.open("ab") as file:
            file.write(b"\n" + own)
        found, _ = read(files, reader)

    assert size == len(own) + len(other) - 9
    assert contents(found, None)[0] == {(0, False): b"".join(b"%d of 0\n" % n for n in range(9000))}


def test_a_node_of_which_all_is_left_out_is_still_heard_of(tmp_path: Path) -> None:
    with opened(tmp_path, frozenset({0})) as (path, files):
        path.write_bytes(block(lines(1, 200_000), 1, 0))
        (chunk,) = files.read(0.0)

    assert (chunk.node, chunk.data) == (1, b"")
