"""The bulk reader gives what the protocol's own decoder gives, however the stream is cut."""

from __future__ import annotations

import random
import tracemalloc
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from launcher.agent.protocol import Decoder, Event, Foreign, LineTagger, Output, Record, encode_event
from launcher.runs import reader as reader_module
from launcher.runs.reader import MarkedLines, StreamReader, parse_ranks
from launcher.runs.sources import JOB_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Iterable


def stream(seed: int) -> bytes:
    """Whole lines, also many of one rank, pieces, events, foreign and malicious lines of 4 ranks."""
    rng = random.Random(seed)
    taggers = [LineTagger(1, rank, name) for rank in range(4) for name in ("stdout", "stderr")]
    lines = [
        b"",
        b"x",
        b"\r50%\r",
        b"\xff\x00\x1b[31m",
        b"1.2| fake",
        b"[1:2] fake",
        b'{"event":"done"}',
        b"y" * 300,
        b"z" * 70_000,
    ]
    data = b""
    for _ in range(300):
        tagger = rng.choice(taggers)
        data += tagger.feed(rng.choice(lines) + rng.choice([b"\n", b"\n", b"\n\n", b""]))
        if rng.random() < 0.1:
            data += tagger.flush()
        if rng.random() < 0.02:
            data += tagger.feed(b"".join(b"%d [1:2] \n" % number for number in range(2500)))
        if rng.random() < 0.05:
            data += tagger.flush() + tagger.feed(b"\n")
            data += block(tagger.feed(b"%d [1:2] \n" % len(data) * rng.choice([1, 9000])), len(data), rng.random())
        if rng.random() < 0.1:
            data += rng.choice(
                [
                    encode_event("heartbeat", 1, workers=2),
                    b"foreign\n",
                    b"1.3| format 1\n",
                    b"[1:x] no\n",
                    b"[1:2]\n",
                    b"1.x| no\n",
                    b"\n",
                    b"12.| \n",
                    b"{\n",
                ]
            )
    return data


def block(lines: bytes, number: int, luck: float) -> bytes:
    """Lines of one rank as an agent writes many of them; some agents are killed meanwhile."""
    frame = encode_event("block", 1, bytes=len(lines), number=number)
    whole = frame + lines + frame
    return whole if luck < 0.7 else whole[: int(len(whole) * luck * luck)] + b"\n"


def cut(data: bytes, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    places = sorted(rng.sample(range(len(data)), 60))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def contents(
    records: list[Record], wanted: frozenset[int] | None
) -> tuple[dict[tuple[int, bool], bytearray], list[Record]]:
    """Each pipe's bytes, and everything else in order."""
    pipes: dict[tuple[int, bool], bytearray] = defaultdict(bytearray)
    for record in records:
        if isinstance(record, Output) and (wanted is None or record.rank in wanted):
            pipes[record.rank, record.stderr] += record.data + (b"\n" if record.ends_line else b"")
    others = [record for record in records if not isinstance(record, Output)]
    return dict(pipes), [record for record in others if not (isinstance(record, Event) and record.name == "block")]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("wanted", [None, frozenset({0}), frozenset({1, 3}), frozenset[int]()])
def test_nothing_is_lost_or_changed_however_the_stream_is_cut(seed: int, wanted: frozenset[int] | None) -> None:
    data = stream(seed)
    reader, decoder = StreamReader(wanted), Decoder()
    ours = [record for part in cut(data, seed) for record in reader.feed(part)] + list(reader.close())
    assert not any(isinstance(record, Event) and record.name == "block" for record in ours)
    theirs = [*decoder.feed(data), *decoder.close()]

    assert contents(ours, wanted) == contents(theirs, wanted)


@pytest.mark.parametrize("seed", range(3))
def test_many_lines_of_a_rank_come_as_they_are_shown(seed: int) -> None:
    """As `follow` reads them: the marks are in the stream already."""
    data, rng = stream(seed), random.Random(seed)
    reader, decoder = StreamReader(), Decoder()
    records: list[Record | MarkedLines] = []
    for part in cut(data, seed):
        more = rng.random() < 0.5
        records += reader.feed_marked(part, more=more)
        if more and rng.random() < 0.5:
            records += reader.feed_marked(b"")
    records += reader.close()
    many = [record for record in records if isinstance(record, MarkedLines)]

    assert many
    assert all(
        line.startswith(b"[1:%d] " % lines.rank) for lines in many for line in bytes(lines.data).split(b"\n")[:-1]
    )
    plain: list[Record] = [record.output() if isinstance(record, MarkedLines) else record for record in records]
    assert contents(plain, None) == contents([*decoder.feed(data), *decoder.close()], None)


def of(records: Iterable[Record | MarkedLines]) -> bytes:
    """The lines of rank 2, as the stream has them."""
    return b"".join(
        bytes(record.data)
        if isinstance(record, MarkedLines)
        else b"[1:2] " + record.data.replace(b"\n", b"\n[1:2] ") + b"\n"
        for record in records
        if isinstance(record, MarkedLines | Output)
    )


def test_a_block_that_is_cut_off_waits_for_its_rest_if_that_comes_at_once_and_no_longer() -> None:
    lines = LineTagger(1, 2, "stdout").feed(b"%d\n" * 9000 % tuple(range(9000)))
    frame = encode_event("block", 1, bytes=len(lines), number=7)
    half, rest = frame + lines[:50_000], lines[50_000:] + frame
    complete = lines[: lines.rindex(b"\n", 0, 50_000) + 1]

    assert of(StreamReader(None, 1).feed_marked(half)) == complete
    reader = StreamReader(None, 1)
    assert not list(reader.feed_marked(half, more=True))
    assert of(reader.feed_marked(rest)) == lines
    for then in (b"", b"\n", encode_event("heartbeat", 1, workers=1)):
        reader = StreamReader(None, 1)
        assert not list(reader.feed_marked(half, more=True))
        assert of(reader.feed_marked(then, more=True)).startswith(complete), "nothing else comes"
    reader = StreamReader(None, 1)
    assert not list(reader.feed_marked(half, more=True))
    decoder = Decoder()
    assert contents(list(reader.close()), None) == contents([*decoder.feed(half), *decoder.close()], None)


@pytest.mark.parametrize("wanted", [None, frozenset({2}), frozenset({0})])
def test_no_block_is_searched_wherever_the_reads_end(
    monkeypatch: pytest.MonkeyPatch, wanted: frozenset[int] | None
) -> None:
    """As long as they follow one another; of a block that is cut off, only the line that is cut is copied."""
    lines = LineTagger(1, 2, "stdout").feed(b"%d\n" * 9000 % tuple(range(9000)))
    data = b"".join(block(lines, number, 0) for number in range(8))
    searched: list[int] = []

    def stop(data: bytes, position: int, end: int, mark: bytes) -> int:
        searched.append(end - position)
        return usual(data, position, end, mark)

    usual = reader_module._stop
    monkeypatch.setattr(reader_module, "_stop", stop)
    for size in (
        len(lines) + 50_000,
        len(lines) * 2 + 7,
        len(lines) + len(data) // 9,
        *range(len(data) - 200, len(data)),
    ):
        reader = StreamReader(wanted, 1)
        reads = [data[at : at + size] for at in range(0, len(data), size)]
        found = [record for read in reads for record in reader.feed_marked(read, more=True)]
        found += reader.close()
        assert of(found) == (b"" if wanted == frozenset({0}) else lines * 8)
        assert len(found) <= 8 + 2 * len(reads)
        assert max(searched, default=0) < 20


def test_lines_that_wait_for_a_slow_terminal_keep_little_more_than_themselves() -> None:
    """Of all that was read, one rank's may be wanted."""
    taggers = [LineTagger(1, rank, "stdout") for rank in range(2)]
    waiting, size = [], 0
    tracemalloc.start()
    try:
        for number in range(40):
            few, many = (
                tagger.feed(b"%d\n" % number * count) for tagger, count in zip(taggers, (2500, 90_000), strict=True)
            )
            for record in StreamReader(frozenset({0}), 1).feed_marked(block(few, 2 * number, 0) + block(many, 1, 0)):
                assert isinstance(record, MarkedLines)
                waiting.append(record)
                size += len(record.data)
        del few, many
        assert (len(waiting), size > 800_000) == (40, True)
        assert tracemalloc.get_traced_memory()[0] < 6 * size
    finally:
        tracemalloc.stop()


def test_a_stream_of_format_1_is_read() -> None:
    lines = b"".join(b"%d\n" % number for number in range(9000))
    stream = b"1.2| " + lines[:-1].replace(b"\n", b"\n1.2| ") + b"\n"

    assert list(StreamReader(None, 1).feed(stream + b"1.0| other\n")) == [
        Output(1, 2, False, lines[:-1], True),
        Output(1, 0, False, b"other", True),
    ]
    assert list(StreamReader(frozenset({0}), 1).feed(stream + b"1.0| other\n")) == [Output(1, 0, False, b"other", True)]


def test_the_order_of_whole_lines_is_kept() -> None:
    data = b"".join(LineTagger(0, rank % 3, "stdout").feed(b"%d\n" % rank) for rank in [0, 0, 1, 1, 2, 0])
    lines = [
        line for record in StreamReader().feed(data) if isinstance(record, Output) for line in record.data.split(b"\n")
    ]

    assert lines == [b"0", b"0", b"1", b"1", b"2", b"0"]


def test_a_line_without_end_that_no_agent_wrote_does_not_fill_the_memory() -> None:
    reader = StreamReader()
    records = [record for _ in range(40) for record in reader.feed(b"x" * 100_000)]

    assert len(records) >= 3
    assert all(isinstance(record, Foreign) for record in records)


@pytest.mark.parametrize("wanted", [None, frozenset({0}), frozenset({5})])
def test_lines_of_other_nodes_in_a_stream_are_foreign(wanted: frozenset[int] | None) -> None:
    """A node cannot write for another one anywhere in its stream, and neither can a job file."""
    others = (b"2.0| forged\n", b"11.5! forged\n", b".5| forged\n", b"01.0| forged\n", b"[2:0] forged\n")
    own = LineTagger(1, 0, "stdout").feed(b"own\n") + LineTagger(1, 5, "stderr").feed(b"own\n")
    records = list(StreamReader(wanted, 1).feed(b"".join(own + line + own for line in others)))

    assert [record.data + b"\n" for record in records if isinstance(record, Foreign)] == list(others)
    assert {record.node for record in records if isinstance(record, Output)} == {1}
    assert list(StreamReader(wanted, JOB_OUTPUT).feed(others[0] + b"-1.0| x\n")) == [
        Foreign(b"2.0| forged"),
        Foreign(b"-1.0| x"),
    ]


@pytest.mark.parametrize("wanted", [None, frozenset({0})])
def test_any_number_of_ranks_that_a_node_names_takes_no_memory(wanted: frozenset[int] | None) -> None:
    reader = StreamReader(wanted, 1)
    list(reader.feed(b"1.0| x\n1.1| x\n"))
    tracemalloc.start()
    try:
        for first in range(0, 20_000, 1000):
            for _ in reader.feed(b"".join(b"1.%d| x\n" % rank for rank in range(first, first + 1000))):
                pass
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()


def test_an_event_inside_of_worker_output_is_output() -> None:
    records = list(StreamReader().feed(LineTagger(0, 0, "stdout").feed(b'{"event":"done","result":"success"}\n')))

    assert not any(isinstance(record, Event) for record in records)


@pytest.mark.parametrize(
    ("text", "ranks"), [("all", None), ("0", {0}), ("0,3-5", {0, 3, 4, 5}), (" 1 , 2 ", {1, 2}), ("7-7", {7})]
)
def test_a_list_of_ranks_is_read(text: str, ranks: set[int] | None) -> None:
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "x", "-1", "1-", "5-3", "1,,2", "1.5", "all,1", "99999999999"])
def test_a_bad_list_of_ranks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_ranks(text)
