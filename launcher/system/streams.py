"""The standard streams of this process."""

from __future__ import annotations

import os


def open_standard_streams() -> None:
    """Open closed standard streams (`>&-`), so that the next file to be opened does not become stdout."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
