"""Makes the samples of one node. The agent's thread for samples calls this, as reading a device may take long."""

from __future__ import annotations

import math
import os
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..named_tuple import NamedTuple
from ..ranks import progress_file
from . import progress
from .changes import Changes
from .gpus import Gpus
from .host import Host
from .links import Links
from .processes import Trees, Use
from .progress import Progress

_MIB = 1 << 20


class Rank(NamedTuple):
    """A worker of this round as the agent's loop sees it."""

    rank: int
    local_rank: int
    round: int
    pid: int
    runs: bool
    lines: int
    """How many lines it has written."""

    marks: Sequence[Tuple[bytes, float]]
    """The last lines with progress from each of its pipes, and when they were read."""

    latest: Sequence[Tuple[bytes, float]]
    """What was last read from each of its pipes."""


class Sampler:
    """What a node uses and its ranks tell, again and again."""

    def __init__(self, env: Mapping[str, str], cgroup: Optional[str], directory: str) -> None:
        """`env`: the workers'. `directory`: where they may tell their progress."""
        self._host, self._links, self._gpus, self._trees = Host(), Links(), Gpus(env), Trees(cgroup)
        self._directory = directory
        self._changes = Changes()
        self._told: Dict[int, Progress] = {}
        """By pid."""

    def sample(self, ranks: Sequence[Rank]) -> Dict[str, Any]:
        """The fields of the next `sample` event."""
        used = self._trees.use(rank.pid for rank in ranks if rank.runs)
        fields: Dict[str, Any] = {**self._host.use(), **self._links.now(), **self._of_gpus(), **self._of_ranks(ranks)}
        fields.update(_of_use([used.get(rank.pid) for rank in ranks]))
        return self._changes.of(fields)

    def troubles(self) -> List[str]:
        """What is wrong with devices, since the last call."""
        return self._gpus.troubles()

    def last(self, ranks: Sequence[Rank]) -> Dict[str, Any]:
        """The fields of the last sample: only what the ranks have written and told, as they have ended."""
        return self._changes.of(self._of_ranks(ranks))

    def _of_gpus(self) -> Dict[str, Any]:
        return {f"gpu_{name}": column for name, column in _columns(self._gpus.now()).items()}

    def _of_ranks(self, ranks: Sequence[Rank]) -> Dict[str, Any]:
        now, wall = time.monotonic(), time.time()
        self._told = {rank.pid: self._progress(rank, wall, now) for rank in ranks}
        told = [self._told[rank.pid] for rank in ranks]
        times = [None if each.time is None else round(wall - (now - each.time), 1) for each in told]
        losses = [None if each.loss is None or math.isnan(each.loss) else each.loss for each in told]
        known = _columns([each._replace(time=at, loss=loss) for each, at, loss in zip(told, times, losses)])
        fields = {"ranks": [rank.rank for rank in ranks], "rank_lines": [rank.lines for rank in ranks]}
        return {**fields, **{f"rank_{name}": column for name, column in known.items()}}

    def _progress(self, rank: Rank, wall: float, now: float) -> Progress:
        """The latest of what it has told, with what only earlier lines told."""
        known = self._told.get(rank.pid, Progress())
        found = [progress.of_mark(line, when) for line, when in rank.marks]
        path = os.path.join(self._directory, progress_file(rank.round, rank.local_rank))
        found += filter(None, [progress.of_file(path, wall, now)])
        if not found:
            found += filter(None, (progress.of_bar(data, when) for data, when in rank.latest))
        for each in sorted(found, key=lambda each: each.time or 0.0):
            known = known._replace(**{name: new for name, new in each._asdict().items() if new is not None})
        return known


def _of_use(used: Sequence[Optional[Use]]) -> Dict[str, Any]:
    return {
        "rank_cpu": [None if use is None else round(use.cpu, 2) for use in used],
        "rank_memory_mib": [None if use is None else use.memory_bytes // _MIB for use in used],
        "rank_state": [None if use is None else use.state for use in used],
    }


def _columns(rows: Sequence[Any]) -> Dict[str, List[Any]]:
    """Rows of one named tuple by their fields, without fields that no row has."""
    if not rows:
        return {}
    columns = {name: [getattr(row, name) for row in rows] for name in rows[0]._fields}
    return {name: column for name, column in columns.items() if any(value is not None for value in column)}
