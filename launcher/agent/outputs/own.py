"""A directory of a run's own, as another run uses the project's with other files: what else is there is linked."""

from __future__ import annotations

import contextlib
import os
from typing import Callable

from ..system import files

NAME = ".project"
"""`DIRECTORY.project` names the project's directory of files."""

_MOST_BYTES = 1 << 16


def make(sent: str, own: str, work: str, is_sent: Callable[[str], bool]) -> None:
    """Make it of the files in `sent`; `is_sent`: whether a file in `work` is as a launcher has sent it."""
    for name in {*os.listdir(work)} - {"__pycache__"}:
        with contextlib.suppress(OSError):  # it is sent now, too, or it is gone
            if not _is_all_sent(work, name, is_sent):
                os.symlink(os.path.join(work, name), os.path.join(sent, name))
    files.write_whole(own + NAME, os.fsencode(work), 0o600)
    os.rename(sent, own)


def _is_all_sent(work: str, path: str, is_sent: Callable[[str], bool]) -> bool:
    target = os.path.join(work, path)
    if os.path.islink(target) or not os.path.isdir(target):
        return is_sent(path)
    names = [name for name in os.listdir(target) if name != "__pycache__"]
    return bool(names) and all(_is_all_sent(work, f"{path}/{name}", is_sent) for name in names)


def project_of(directory: bytes) -> bytes:
    """The project's directory to which links in this one may lead; empty if it is no run's own."""
    with contextlib.suppress(OSError):
        return os.path.realpath(files.read_word(os.fsdecode(directory) + NAME, _MOST_BYTES))
    return b""
