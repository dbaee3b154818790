"""Removes what a run has left on a host: its directory, with the streams, the working directory and the key."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Dict

from ..system import files
from . import preflight


def remove(directory: str) -> Dict[str, Any]:
    """Remove the run's directory, unless one of its agents runs on this host; a directory that is gone is no error."""
    import glob

    nodes = os.path.join(directory, "nodes")
    for rank in os.listdir(nodes) if os.path.isdir(nodes) else ():
        identity = preflight.identity_of(directory, int(rank))
        if identity is not None and preflight.alive(identity):
            return {"problem": f"its agent runs: process {identity['pid']}"}
    for left in glob.glob(f"{glob.escape(directory)}.*.removed"):  # of a removal that was cut off or has failed
        files.remove_tree(left)
    # Renamed first: on a disk that hosts share, each of them removes it, and none finds it half removed.
    gone = f"{directory}.{os.getpid()}.removed"
    with contextlib.suppress(FileNotFoundError):
        os.rename(directory, gone)
        files.remove_tree(gone)
    return {}
