"""Which hosts that do not answer are lost to their run."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING

from launcher.agent.failures import Failure
from launcher.backends.ansible.handle import more_s
from launcher.runs import status
from launcher.runs.node_report import Cause, NodeReport

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from launcher.backends.ansible.stream import Tail

_LOST_S = 45.0
"""A host that is silent for this long is lost if another node has ended, as peers give a node up after 30 s. It is also
lost if no node has completed a rendezvous, as no peer would miss it then."""

_TAIL_BYTES = 256 * 1024
"""More than a node writes before its rendezvous with the others."""


def is_lost(tail: Tail, tails: Sequence[Tail]) -> bool:
    """Whether a silent host is lost to the run: another node has ended, or none has completed a rendezvous.

    No time has to pass for one that has not answered at all if another node has ended because of it: that one waited.
    """
    if tail.lost_at is None:
        return False
    ended = [other for other in tails if other is not tail and other.state == "ended"]
    if time.monotonic() - tail.lost_at > _LOST_S + more_s(tail.node):
        return bool(ended) or not any(map(_has_met, tails))
    if tail.state != "unknown":
        return False
    return any(_blames(other.stream, _size(other.stream), other.node["rank"], tail.node["rank"]) for other in ended)


def _blames(stream: Path, size: int, node: int, rank: int) -> bool:
    """Whether a node has ended as that one was lost to it. Without node 0, it only knows that its store is gone."""
    why = _cause(stream, size, node)
    return why.get("class") == Failure.NODE and (
        why.get("node") == rank or (rank == 0 and why.get("secondary") is True)
    )


@lru_cache(maxsize=1024)
def _cause(stream: Path, size: int, node: int) -> Cause:
    """Why a node has ended, by its stream of that size, which many questions need; empty if it has not."""
    report = NodeReport(node=node)
    for record in status.ends(stream, size):
        report.add(record)
    return (report.cause or {}) if report.result is not None else {}


def _has_met(tail: Tail) -> bool:
    """Whether a node has completed a rendezvous since its last start, by what was fetched of its stream."""
    left_out = max(0, _size(tail.stream) - _TAIL_BYTES)
    try:
        with open(tail.stream, "rb") as file:
            file.seek(left_out)
            said = b"\n" + file.read()
    except FileNotFoundError:
        return False
    began = said.rfind(b'\n{"event":"agent_started",')
    return (began < 0 and left_out > 0) or b'\n{"event":"rendezvous",' in said[max(0, began) :]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
