"""A table of the fork servers that wait for the next run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launcher.console import summary, tables
from launcher.system import amounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.results.warm import WarmServer

_HEADER = ("HOST", "PID", "PYTHON", "IMPORTED", "AGE", "LEFT", "RUNS", "MEMORY")


def lines(servers: Sequence[WarmServer]) -> list[str]:
    """One row for each; none without any."""
    rows = [
        (
            each["host"],
            str(each["pid"]),
            each["python"],
            ", ".join(name for name in each["modules"] if not name.startswith("torch.distributed")),
            summary.age(each["since"]),
            summary.duration(max(0.0, each["until"] - time.time())),
            str(each["runs"]),
            None if each["memory_bytes"] is None else amounts.size(each["memory_bytes"]),
        )
        for each in servers
    ]
    return tables.table(_HEADER, rows, cut=True).splitlines() if rows else []
