"""The standard streams of this process."""

from __future__ import annotations

import os


def open_standard_streams() -> None:
    """Give a process started with `>&-` something on 0, 1 and 2, lest the next file it opens be taken for stdout."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
