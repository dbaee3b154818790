"""When the garbage collector runs in the agent's processes: not while they start, as what they make then stays.

A collection also writes to each object that it looks at, and a forked process gets its own copy of every page that is
written to.
"""

from __future__ import annotations

import gc


def keep() -> None:
    """Collect nothing for now."""
    gc.disable()


def collect() -> None:
    """Collect from now on, but never look at what exists already."""
    gc.freeze()
    gc.enable()
