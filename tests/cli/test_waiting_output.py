"""Output that waits for its reader: the launcher goes on as soon as it is written, and does not wait for ever."""

from __future__ import annotations

import threading

from launcher.system.writing import Writer


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
