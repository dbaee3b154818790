"""Files that were sent, by their times: what a launch has changed in a project's directory has the time of that launch.

All others have `SENT_MTIME_S`. Programs that compare times, such as make, build anew what depends on a changed file.
A list beside the directory, `DIRECTORY.times`, has a line for each of these files: `NANOSECONDS SHA256 PATH`. It is
plain text, as the shell of a login node reads it, too.
"""

from __future__ import annotations

import contextlib
import os
from typing import Callable, Dict, Tuple

from ..system import files
from ..system.files import SENT_MTIME_S

NAME = ".times"
Times = Dict[str, Tuple[int, str]]
"""Of each path its time in nanoseconds, and its content's SHA-256."""

_SECOND = 10**9
_MOST_BYTES = 1 << 28


def read(directory: str) -> bytes:
    """The list for that directory; empty if there is none."""
    with contextlib.suppress(OSError):
        return files.read_word(directory + NAME, _MOST_BYTES)
    return b""


def parsed(data: bytes) -> Times:
    """The files in a list."""
    found = {}
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        time, _, rest = line.partition(" ")
        sha, _, path = rest.partition(" ")
        if path and time.isdecimal():
            found[path] = (int(time), sha)
    return found


def write(directory: str, times: Times) -> None:
    """Replace the list for that directory."""
    text = "".join(f"{time} {sha} {path}\n" for path, (time, sha) in times.items())
    data = text.encode("utf-8", "surrogateescape")
    if data != read(directory):
        files.write_whole(directory + NAME, data, 0o600)


def put(directory: str, times: Times) -> None:
    """Give the files their times."""
    for path, (time, _) in times.items():
        os.utime(os.path.join(directory, path), ns=(time, time))


def sent(data: bytes) -> Callable[[str, int, bool], bool]:
    """Tells with a list whether a file is as it was sent: by its path, its time, and whether that is a link's target's.

    Some programs tell times in whole seconds.
    """
    times = {path: {time, time // _SECOND * _SECOND} for path, (time, _) in parsed(data).items()}
    every = {time for both in times.values() for time in both}

    def is_sent(path: str, time: int, link: bool) -> bool:
        return time == SENT_MTIME_S * _SECOND or time in (every if link else times.get(path, ()))

    return is_sent
