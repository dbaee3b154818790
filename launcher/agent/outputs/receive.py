"""Files that a launcher brings to a node before its workers start."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import IO, Iterator

_BLOCK_BYTES = 1 << 20
_PART = ".distlaunch-part"


def receive(top: str, name: str, size: int, source: IO[bytes]) -> str:
    """Write the next `size` bytes of the source to a file below `top`, which appears whole; returns why it could not.

    All of them are read in any case: another request follows.
    """
    blocks = _blocks(source, size)
    path = os.path.join(top, name)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + _PART, "wb") as file:
            file.writelines(blocks)
        os.replace(path + _PART, path)
    except (OSError, EOFError) as error:
        for _ in blocks:
            pass
        with suppress(OSError):
            os.unlink(path + _PART)
        return f"{path}: {error.strerror or error}" if isinstance(error, OSError) else str(error)
    return ""


def _blocks(source: IO[bytes], size: int) -> Iterator[bytes]:
    while size > 0:
        block = source.read(min(size, _BLOCK_BYTES))
        if not block:
            raise EOFError(f"{size} bytes are missing")
        size -= len(block)
        yield block
