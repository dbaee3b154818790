"""What workers write arrives byte for byte, line by line, in bounded memory."""

from __future__ import annotations

import os
import random
import selectors
import signal
import time
from typing import TYPE_CHECKING
from unittest.mock import Mock

import psutil
import pytest

from launcher.agent import protocol
from launcher.agent.node.output import Output
from launcher.agent.stream.output import PART_AFTER_S
from launcher.agent.stream.traces import Traces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.agent.stream.sink import Item
    from tests.agent.harness import Runner

TEXTS = {
    "progress bar": b"".join(b"\r%3d%%" % i for i in range(100)) + b"\n",
    "no newline at the end": b"one\ntwo",
    "empty lines": b"\n\n\n",
    "binary": bytes(range(256)) * 50,
    "a line of a megabyte": b"x" * (1 << 20) + b"\nend\n",
    "a long line that ends in a block": b"short\n" * 9000 + b"x" * 200_000 + b"\nend\n",
    "looks like the protocol": b'0.1| fake\n{"event":"done","result":"success"}\n7.7!+x\n',
    "terminal codes": b"\x1b[31mred\x1b[0m \xe2\x9c\x93 \xff\xfe\n",
    "nothing": b"",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 18, 1 << 20])
def test_tagging_and_decoding_gives_the_same_bytes_however_they_are_cut(text: bytes, size: int) -> None:
    tagger = protocol.LineTagger(3, 14, protocol.STDERR)
    stream = b"".join(tagger.feed(text[i : i + size]) for i in range(0, len(text), size)) + tagger.flush()
    decoder = protocol.Decoder()
    cuts = random.Random(size)
    records: list[protocol.Record] = []
    at = 0
    while at < len(stream):
        step = cuts.randint(1, 100_000)
        records += decoder.feed(stream[at : at + step])
        at += step
    records += decoder.close()

    assert all(isinstance(r, protocol.Output) and (r.node, r.rank, r.stderr) == (3, 14, True) for r in records)
    assert b"".join(r.data + (b"\n" if r.ends_line else b"") for r in records if isinstance(r, protocol.Output)) == text
    assert max((len(line) for line in stream.split(b"\n")), default=0) < 2.01 * protocol.MAX_PAYLOAD_BYTES


def test_a_line_of_another_program_is_foreign_and_does_not_disturb() -> None:
    text = b'slurmstepd: error: x\n{"event": broken\n0.1| ok\n' + protocol.encode_event("heartbeat", 2, workers=1)
    records = list(protocol.Decoder().feed(text))

    assert [type(record).__name__ for record in records] == ["Foreign", "Foreign", "Output", "Event"]


@pytest.mark.parametrize("size", [0, 50_000, 500_000, 1_000_000, 8_000_000])
def test_an_event_stays_whole_however_long_its_texts_are(size: int) -> None:
    fields = {"message": "x" * size, "cause": {"host": "\0" * size, "node": 3}, "list": ["y"] * size}

    decoder = protocol.Decoder()
    (event,) = decoder.feed(protocol.encode_event("warning", 0, **fields))

    assert isinstance(event, protocol.Event)
    assert event.name == "warning"
    assert event.fields["cause"]["node"] == 3
    assert event.fields["message"].startswith("x" * min(size, 10))
    assert size > 50_000 or event.fields["message"] == "x" * size


def test_every_byte_of_both_streams_arrives_from_real_workers(agents: Runner) -> None:
    texts = list(TEXTS.values())
    run = agents(
        f"import os, sys\nrank = int(os.environ['RANK'])\ntexts = {texts!r}\n"
        "for text in texts:\n"
        "    os.write(1, b'%d' % rank + text) if len(text) < 60000 else sys.stdout.buffer.write(b'%d' % rank + text)\n"
        "    sys.stderr.buffer.write(text); sys.stderr.flush()\n",
        nproc_per_node="3",
    )

    assert run.result() == "success"
    for rank in range(3):
        assert run.stdout[rank] == b"".join(b"%d" % rank + text for text in texts)
        assert run.stderr[rank] == b"".join(texts)
    assert run.foreign == []


def test_many_lines_of_many_ranks_arrive_whole_and_the_agent_stays_small(agents: Runner) -> None:
    run = agents.start(
        "import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\nrank = os.environ['RANK']\n"
        "for number in range(20000):\n    print(rank, number, 'x' * 80)\n"
        "print('written', flush=True)\nsignal.sigwait([signal.SIGUSR1])\n",
        nproc_per_node="4",
    )
    run.until(lambda: all(out.endswith(b"written\n") for out in run.stdout.values()) and len(run.stdout) == 4)
    peak = psutil.Process(run.agent_pid()).memory_info().rss
    run.backend.signal(run.handle, signal.SIGUSR1)
    assert run.wait().result() == "success"

    for rank in range(4):
        lines = run.stdout[rank].decode().splitlines()
        assert lines == [*(f"{rank} {number} {'x' * 80}" for number in range(20000)), "written"]
    assert peak < 60 << 20


def test_a_prompt_without_a_newline_is_seen_while_the_worker_runs(agents: Runner) -> None:
    run = agents.start("import sys, time\nsys.stdout.write('loading...')\ntime.sleep(60)\n")

    run.until(lambda: run.stdout[0] == b"loading...")
    run.backend.cancel(run.handle)
    assert run.wait().result() == "cancelled"


def test_output_of_a_child_that_outlives_its_worker_is_kept(agents: Runner) -> None:
    run = agents.start(
        "import os, sys, time\n"
        "parent = os.getpid()\n"
        "if os.environ['RANK'] == '0' and os.fork() == 0:\n"
        "    while os.getppid() == parent or not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
        "    os.write(1, b'late\\n')\n"
        "    open(sys.argv[1] + '.written', 'w').close()\n"
        "    os._exit(0)\n"
        "while os.environ['RANK'] == '1' and not os.path.exists(sys.argv[1] + '.written'): time.sleep(0.01)\n",
        str(agents.directory / "go"), nproc_per_node="2",
    )  # fmt: skip
    run.until(lambda: run.of("worker_exited"))
    (agents.directory / "go").touch()

    assert run.wait().result() == "success"
    assert run.stdout[0] == b"late\n"


def test_the_last_progress_is_found_wherever_what_is_read_is_cut() -> None:
    text = b"::distlaunch progress step=1\nloss ::distlaunch progress step=2\nother\n::distlaunch progress st"
    for at in range(len(text)):
        tagger, found = protocol.LineTagger(0, 0, protocol.STDOUT), Traces()
        for part in (text[:at], text[at:]):
            before = tagger.pending
            tagger.feed(part)
            found.add(before, part)
        assert found.mark is not None
        assert found.mark[0] == b"::distlaunch progress step=2", "the last one is not complete"


class Reading:
    """The output of one worker, read turn by turn into a stream that is blocked if `full`."""

    def __init__(self) -> None:
        self.full = False
        self.written = b""
        read, self._fd = os.pipe()
        stderr, self._stderr = os.pipe()
        self._selector = selectors.DefaultSelector()
        stream = Mock(add=self._add, must_wait=Mock(side_effect=lambda **_: self.full))
        self._output = Output(Mock(node_rank=0), stream, self._selector, Mock())
        self._pipes = self._output.open({"round": 0, "rank": 0, "local_rank": 0, "pid": 1}, [read, stderr], None)

    def _add(self, item: Item) -> None:
        self.written += item.data

    def turn(self, more: bytes = b"", *, after_s: float = 0.0) -> bytes:
        """The worker writes `more`; all that is in the stream after a turn that began so long after now."""
        looked = time.monotonic() + after_s
        os.write(self._fd, more)
        for key, _ in self._selector.select(0):
            key.data()
        self._output.attend(looked, looked, holds=True)
        return self.written

    def close(self) -> None:
        """Close all descriptors."""
        self._selector.close()
        for fd in (self._fd, self._stderr, *(pipe.fd for pipe in self._pipes.values())):
            os.close(fd)


@pytest.fixture
def reading() -> Iterator[Reading]:
    made = Reading()
    yield made
    made.close()


def test_a_line_that_has_only_begun_is_not_sent_in_pieces_however_long_others_have_come(reading: Reading) -> None:
    reading.turn(b"one\ntwo")
    assert reading.turn(b" three\nfour", after_s=PART_AFTER_S) == b"[0:0] one\n[0:0] two three\n"
    assert reading.turn(after_s=2 * PART_AFTER_S).endswith(b"three\n0.0|+four\n"), "it has waited now"


def test_what_was_not_read_while_the_stream_was_blocked_is_read_before_a_line_is_sent_in_pieces(
    reading: Reading,
) -> None:
    reading.full = True
    reading.turn(b"begun")
    assert reading.turn(b" and ended\nnext", after_s=60) == b""

    reading.full = False
    assert reading.turn(after_s=60) == b""
    assert reading.turn() == b"[0:0] begun and ended\n"
    assert reading.turn(after_s=60) == b"[0:0] begun and ended\n0.0|+next\n"
