"""The connections that fetch streams, without a host: a program of ours in place of ssh, and a clock that tests set."""

from __future__ import annotations

import contextlib
import random
import select
import sys
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.ssh.calls import ANSWER
from launcher.backends import _patience
from launcher.backends.ansible import ssh
from launcher.backends.ansible import stream as streams
from launcher.backends.ansible.frames import FrameError, Frames
from launcher.errors import CommandError, StorageError
from launcher.system import storage
from testbed import wait_until
from tests.ansible.conftest import Gate

if TYPE_CHECKING:
    from collections.abc import Iterator

WORD = b"a line\n"
ANSWERS = f"printf '\\n{ANSWER}{{}}\\nd {len(WORD)}\\n{WORD.decode()}'; exec sleep 1000"


class Clock:
    """The connections' time, which also advances when a test says so."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        """As `time.monotonic`."""
        return time.monotonic() + self.ahead_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Hours pass at once, so that the speed of this host does not matter."""
    made = Clock()
    for module in (streams, _patience):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=made.monotonic, sleep=time.sleep))
    monkeypatch.setattr(_patience, "_SILENT_S", (1000.0, 8000.0))
    return made


def node(directory: Path, rank: int, program: str) -> Any:
    """A node whose ssh is this shell program; it finds `started` in its directory, one line per connection."""
    ssh = directory / f"ssh-{rank}"
    ssh.write_text(
        f'#!/bin/sh\ncase "$*" in *"-O exit"*) exit;; esac\necho x >> {directory}/started-{rank}\n{program}\n'
    )
    ssh.chmod(0o700)
    return {
        "host": f"n{rank}",
        "rank": rank,
        "python": "python3",
        "directory": "/x",
        "agent_path": "/x/a",
        "ssh": [str(ssh), "h"],
    }


def connections(directory: Path, rank: int) -> int:
    """How many were opened to a node."""
    path = directory / f"started-{rank}"
    return len(path.read_text().split()) if path.exists() else 0


def wait_connections(directory: Path, rank: int, number: int) -> None:
    """Wait for the program in place of ssh to have begun this many times."""
    wait_until(
        f"connection {number} to node {rank}", lambda: connections(directory, rank) >= number, limit_s=60, every_s=0.01
    )


def test_data_that_waits_in_a_pipe_is_not_silence(tmp_path: Path, clock: Clock) -> None:
    """A launcher that is kept from reading for long does not drop connections whose answers have come meanwhile."""
    gate = Gate(tmp_path / "gate", range(3))
    nodes = [node(tmp_path, rank, f"head -c 1 {gate}.{rank} >/dev/null; {ANSWERS}") for rank in range(3)]
    pump = streams.Pump([streams.Tail(each, tmp_path) for each in nodes])
    try:
        pump.turn(0)
        gate.open()
        for tail in pump.tails:
            assert tail._connection is not None
            assert select.select([tail._connection.pipe.fd], [], [], 60)[0], "an answer"
        clock.ahead_s += 5000  # longer than the limit

        while not all(tail.state == "running" for tail in pump.tails):
            pump.turn(0.1)

        assert [connections(tmp_path, rank) for rank in range(3)] == [1, 1, 1]
        assert (tmp_path / "nodes/2/stream").read_bytes() == WORD
    finally:
        pump.close()
        gate.close()


def test_a_login_that_takes_longer_than_the_limit_is_completed(tmp_path: Path, clock: Clock) -> None:
    """The limit grows from try to try, up to the second: busy hosts are not asked to begin again forever."""
    gate = tmp_path / "gate"
    tail = streams.Tail(node(tmp_path, 0, f"[ -e {gate} ] || exec sleep 1000; {ANSWERS}"), tmp_path)
    pump = streams.Pump([tail])
    try:
        for number, limit_s in enumerate((1000, 2000, 4000, 8000, 8000), 1):
            pump.turn(0)
            wait_connections(tmp_path, 0, number)
            clock.ahead_s += limit_s - 100
            pump.turn(0)
            assert tail._connection is not None, f"dropped before {limit_s} s"
            clock.ahead_s += 200
            pump.turn(0)
            assert tail._connection is None, f"not dropped after {limit_s} s"
            assert tail.problem == "no answer"
            clock.ahead_s += 60  # the pause before the next try
        gate.touch()
        pump.turn(0)
        clock.ahead_s += 7900
        while tail.state == "unknown":
            pump.turn(0.1)
        assert (tail.state, tail.problem) == ("running", "")
        assert connections(tmp_path, 0) == 6
    finally:
        pump.close()


# -- hosts that are not what they should be ----------------------------------------------------------------

BEGIN = f"MOTD\n\n{ANSWER}{{}}\n".encode()
ENDING = b'e {"stderr": "x", "last_words": "y"}\n'


def taken(data: bytes, sizes: Iterator[int]) -> tuple[bytes, list[Any]]:
    """The stream's bytes, and all other messages, of frames that come in pieces of these sizes."""
    frames, stream, told = Frames(), b"", []
    while data:
        size = next(sizes)
        for frame in frames.feed(data[:size]):
            if isinstance(frame, bytes):
                stream += frame
            else:
                told.append(frame)
        data = data[size:]
    return stream, told


@pytest.mark.parametrize("seed", range(20))
def test_frames_are_the_same_wherever_they_are_cut(seed: int) -> None:
    dice = random.Random(seed)
    parts = [dice.randbytes(dice.choice((0, 1, 70, 5000))) for _ in range(12)]
    data = BEGIN + b"".join(b"d %d\n%b" % (len(part), part) + b"k\n" * dice.randrange(2) for part in parts) + ENDING

    assert taken(data, iter(lambda: dice.choice((1, 2, 3, 7, 100, 4000)), 0)) == (
        b"".join(parts),
        [{"stderr": "x", "last_words": "y"}],
    )


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_end_in_the_one_error_that_is_caught(seed: int) -> None:
    dice = random.Random(seed)
    data = BEGIN + bytes(dice.choices(b'dek r\n 0123456789-{}"x', k=3000))
    with contextlib.suppress(FrameError):
        taken(data, iter(lambda: dice.choice((1, 50, 3000)), 0))


@pytest.mark.parametrize(
    "frame",
    [
        b"d -5",
        b"d x",
        b"d " + b"9" * 30,
        b"e nothing",
        b"e []",
        b'e {"stderr": 1}',
        b"q",
        b"\xff",
        b"",
        b"e " + b"[" * 100_000,
    ],
    ids=range(10),
)
def test_an_invalid_frame_is_an_error(frame: bytes) -> None:
    with pytest.raises(FrameError):
        list(Frames().feed(BEGIN + frame + b"\n"))


@pytest.mark.parametrize("first", [b"", BEGIN + b"e ", BEGIN + b"d 5\nhello", BEGIN + b"d " + b"9" * 18 + b"\n"])
def test_a_host_that_sends_forever_takes_no_memory(first: bytes) -> None:
    """16 MB more are kept neither before an answer nor in a line; those of a huge frame are passed on at once."""
    frames = Frames()
    list(frames.feed(first))
    tracemalloc.start()
    try:
        with contextlib.suppress(FrameError):
            for _ in range(300):
                for piece in frames.feed(b"x" * 65536):
                    assert isinstance(piece, bytes)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


GARBAGE = {
    "no frame": f"printf '\\n{ANSWER}{{}}\\nd -7\\n'; exec sleep 1000",
    "a line without an end": f"printf '\\n{ANSWER}{{}}\\n'; exec cat /dev/zero",
    "noise": "exec yes",
    "noise on stderr": f"exec {sys.executable} -c 'import os\nwhile True: os.write(2, bytes(65536))'",
    "an end that is none": f"""printf '\\n{ANSWER}{{}}\\ne {{"stderr": 5}}\\n'; exec sleep 1000""",
}


@pytest.mark.parametrize("program", GARBAGE)
def test_a_host_that_sends_what_no_agent_sends_is_asked_again_and_given_up(
    tmp_path: Path, clock: Clock, program: str
) -> None:
    tail = streams.Tail(node(tmp_path, 0, GARBAGE[program]), tmp_path)
    pump = streams.Pump([tail])
    try:
        while not tail.finished:
            pump.turn(0.1)
            if tail._connection is None:
                clock.ahead_s += 60  # the pause before the next try
        assert connections(tmp_path, 0) == 3
        assert tail.state == "ended"
        assert "its answer is not an agent's" in tail.ending["message"]
    finally:
        pump.close()


def test_texts_at_the_end_may_contain_anything(tmp_path: Path, clock: Clock) -> None:
    told = r'{"stderr": "\\ud800\\u0000\\u001b[2J", "last_words": "", "more": [1]}'
    tail = streams.Tail(node(tmp_path, 0, f"printf '\\n{ANSWER}{{}}\\ne %s\\n' '{told}'; exec sleep 1000"), tmp_path)
    pump = streams.Pump([tail])
    try:
        while not tail.finished:
            pump.turn(0.1)
    finally:
        pump.close()
    assert (tail.state, tail.problem) == ("ended", "")
    assert "[2J" in (tmp_path / "nodes/0/stderr").read_text()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("exec yes", "has printed more than 16 MB"),
        (f"printf '\\n{ANSWER}nonsense\\n'", "its answer is not an agent's"),
        (f"printf '\\n{ANSWER}[1]\\n'", "its answer is not an agent's"),
        (f"printf '\\n{ANSWER}'", "its answer is not an agent's"),
    ],
)
def test_an_invalid_answer_is_an_error_that_names_the_host(tmp_path: Path, program: str, words: str) -> None:
    with pytest.raises(CommandError, match=f"^n0: .*{words}"):
        ssh.call(node(tmp_path, 0, program), "signal", "/x", "0", "15")


def test_a_host_that_sends_without_end_leaves_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run continues; the user who follows it is told what to do."""
    free = 6_000_000
    monkeypatch.setattr(
        storage,
        "_space",
        lambda directory: (free - sum(path.stat().st_size for path in directory_files(directory)), 20_000_000),
    )
    pours = f"printf '\\n{ANSWER}{{}}\\nd 999999999\\n'; exec cat /dev/zero"
    pump = streams.Pump([streams.Tail(node(tmp_path, 0, pours), tmp_path)])
    try:
        with pytest.raises(StorageError, match="leaves 0 MiB of its disk to others") as caught:
            list(map(pump.turn, [1.0] * 1000))
        assert "make room" in str(caught.value.hint)
        assert 0 < (tmp_path / "nodes/0/stream").stat().st_size < 6_000_000 + 100_000
    finally:
        pump.close()


def directory_files(directory: str) -> Iterator[Path]:
    """What is in there."""
    return Path(directory).iterdir()
