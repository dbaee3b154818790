"""Memory as proportional sets (a shared page is divided among its users) and private ones, not as resident sets."""

from __future__ import annotations

import json
import re
import statistics
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from benchmarks._measure import Contender, descendants, measure

if TYPE_CHECKING:
    from collections.abc import Callable

_LIMIT_S = 90.0


@dataclass(frozen=True)
class Memory:
    """Memory of one run, while all ranks wait at a barrier."""

    FIELDS: ClassVar[tuple[str, ...]] = ("pss_bytes", "private_bytes", "whole_bytes")

    pss_bytes: float
    """Proportional set of a rank."""

    private_bytes: float
    """Memory that only one rank holds."""

    whole_bytes: float
    """Proportional set of all processes, including agents and launcher, divided by the ranks."""


def memory_of(contender: Contender, workers: int, directory: Path) -> Memory:
    """Run `_workers/memory.py` with the contender's command, and read what its ranks report."""
    for name in ("ready", "go"):
        (directory / name).unlink(missing_ok=True)
    contender = replace(contender, env={**(contender.env or {}), "BENCH_DIRECTORY": str(directory)})
    totals: list[int] = []
    sample = measure(contender, watch=lambda _: _start(lambda: _look(directory, totals)))
    said = [json.loads(text) for text in re.findall(r'\{"pss_kb": \d+, "private_kb": \d+\}', sample.output)]
    if sample.exit_code or len(said) != workers or not totals:
        raise RuntimeError(
            f"{contender.name}: exit code {sample.exit_code}, {len(said)} ranks\n{sample.output[-4000:]}"
        )
    ranks = {name: statistics.mean(one[name] for one in said) * 1024 for name in ("pss_kb", "private_kb")}
    return Memory(ranks["pss_kb"], ranks["private_kb"], totals[0] / workers)


class Peak:
    """Follows one process: its highest resident set and its CPU time, as last seen while it ran."""

    def __init__(self, find_pid: Callable[[], int | None]) -> None:
        """`find_pid` is called until it returns a pid."""
        self.rss_bytes = 0
        self.cpu_s = 0.0
        self._find_pid = find_pid
        _start(self._follow)

    def _follow(self) -> None:
        limit, pid = time.monotonic() + _LIMIT_S, None
        while pid is None and time.monotonic() < limit:
            pid = self._find_pid()
            time.sleep(0.02)
        while pid is not None:
            try:
                status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
                ran_ns = sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
            except OSError:
                return
            high = re.search(r"VmHWM:\s+(\d+) kB", status)
            if high is None:  # a zombie has no memory
                return
            self.rss_bytes, self.cpu_s = int(high[1]) * 1024, ran_ns / 1e9
            time.sleep(0.03)


def _start(target: Callable[[], None]) -> None:
    threading.Thread(target=target, daemon=True).start()


def _look(directory: Path, totals: list[int]) -> None:
    """Once the ranks are at their barrier, sum up the memory of all processes and let the ranks continue."""
    limit = time.monotonic() + _LIMIT_S
    while not (directory / "ready").exists():
        if time.monotonic() > limit:
            return
        time.sleep(0.01)
    totals.append(sum(_pss_bytes(pid) for pid in descendants()))
    (directory / "go").touch()


def _pss_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
