"""What is sent to a login node: packs whose size is known before they are written, by a pipe that nothing waits for."""

from __future__ import annotations

import io
import subprocess
import threading
from typing import IO, TYPE_CHECKING

import pytest

from launcher.errors import SpecError
from launcher.login.feeder import Feeder
from launcher.login.store import pack_bytes, write_pack
from launcher.payload import snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LARGE = 3_000_000


@pytest.mark.parametrize("sizes", [(), (0,), (1,), (511, 512, 513), (9216,), (100_000, 20)])
def test_the_size_of_a_pack_is_known_before_it_is_written(sizes: tuple[int, ...], tmp_path: Path) -> None:
    for number, size in enumerate(sizes):
        (tmp_path / str(number)).write_bytes(bytes([number]) * size)
    taken = snapshot.collect(tmp_path, limit_bytes=LARGE)
    written = io.BytesIO()
    write_pack(taken, taken.files, written)
    assert len(written.getvalue()) == pack_bytes(taken.files)


def fed(program: list[str], first: bytes, write: Callable[[IO[bytes]], object] | None) -> tuple[bytes, Feeder]:
    """What the program prints of its stdin."""
    with Feeder(first, write) as feeder:
        with subprocess.Popen(program, stdin=feeder.reads, stdout=subprocess.PIPE) as process:
            feeder.start()
            assert process.stdout
            shown = process.stdout.read()
        return shown, feeder


def test_a_program_reads_what_is_written_meanwhile() -> None:
    shown, feeder = fed(["cat"], b"first ", lambda target: [target.write(b"x" * LARGE) for _ in range(3)])
    assert shown == b"first " + b"x" * 3 * LARGE
    assert feeder.written == len(shown)
    feeder.check()


def test_what_cannot_be_read_ends_the_stream_and_is_raised() -> None:
    def write(target: IO[bytes]) -> None:
        target.write(b"some")
        raise SpecError("changed")

    shown, feeder = fed(["cat"], b"", write)
    assert shown == b"some"
    with pytest.raises(SpecError, match="changed"):
        feeder.check()


@pytest.mark.parametrize("program", [["true"], ["head", "-c", "10"]])
def test_a_program_that_reads_no_more_ends_it(program: list[str]) -> None:
    shown, feeder = fed(program, b"", lambda target: target.write(b"x" * LARGE))
    assert len(shown) in (0, 10)
    assert feeder.written < LARGE
    feeder.check()


def test_one_that_is_given_up_while_nothing_is_read_leaves_no_thread() -> None:
    before = threading.active_count()
    with Feeder(b"x" * LARGE, None) as feeder:
        process = subprocess.Popen(["sleep", "60"], stdin=feeder.reads)
        feeder.start()
    try:
        assert threading.active_count() == before
        assert feeder.written < LARGE
    finally:
        process.kill()
        process.wait()
