"""Output that waits for its reader: the launcher goes on as soon as it is written, and does not wait for ever."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from launcher.system import writing
from launcher.system.writing import Writer

if TYPE_CHECKING:
    from pathlib import Path


def test_what_waits_is_waited_for_until_a_limit_and_until_it_is_written() -> None:
    may_write, written = threading.Event(), bytearray()

    def write(_fd: int, data: bytes | memoryview) -> None:
        assert may_write.wait(60)
        written.extend(data)

    writer = Writer(lambda: False, write)
    writer.put(1, b"line\n" * 100_000)
    writer.drain(0.01)
    assert (writer.waiting, bytes(written)) == (500_000, b"")

    may_write.set()
    writer.drain(60)
    assert (writer.waiting, bytes(written)) == (0, b"line\n" * 100_000)
    writer.put(-1, b"")


@pytest.mark.parametrize("blocks", [True, False])
def test_parts_arrive_whole_and_in_order_whether_a_pipe_takes_all_of_them_at_once(blocks: bool) -> None:
    parts = [b"%d" % number * 60_000 + b"\n" for number in range(8)]
    readable, writable = os.pipe()
    os.set_blocking(writable, blocks)
    got = bytearray()

    def read() -> None:
        while data := os.read(readable, 10_000):
            got.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    writer = Writer(lambda: False, writing.write_all)
    for _ in range(6):  # the first ones are written in small portions, the last ones at once
        writer.put(writable, *parts)
    writer.drain(60)
    writer.put(-1, b"")
    os.close(writable)
    reader.join(60)
    os.close(readable)
    assert bytes(got) == b"".join(parts) * 6


def test_a_file_gets_all_parts(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("wb") as file:
        writing.write_all(file.fileno(), b"one\n", memoryview(b"two\n"), b"", b"three\n")
    assert path.read_bytes() == b"one\ntwo\nthree\n"
