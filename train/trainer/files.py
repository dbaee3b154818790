"""Files that appear under their names complete or not at all."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Iterator

if TYPE_CHECKING:
    from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield the path to write to; it becomes `path` at the end of the block, and is removed if that fails."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def sync_to_disk(path: Path) -> None:
    """fsync a file or a directory."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
