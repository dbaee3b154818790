"""A run that is queued on several clusters: its tries, and which of them has the claim.

RUN/run.json    `race`: what was asked and tried
RUN/claim.json  which try has the claim, before anything is granted; it passes on once that try has ended (`moves.py`)
RUN/tries/ID/   each try, a run of its own

An agent starts nothing without the claim (`agent/node/claim.py`). A launcher grants it only to the try in claim.json,
which is created exclusively. So whatever dies, at most one try starts its script.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from launcher.errors import StorageError
from launcher.system import storage

if TYPE_CHECKING:
    from launcher.results.race import Holder
    from launcher.runs.records import Run

TRIES = "tries"
_CLAIM = "claim.json"


def claim(run: Run) -> Holder | None:
    """Which of the run's tries has the claim; None if that is not decided."""
    found = storage.read_json(run.path / _CLAIM)
    if found is None:
        return None
    return {"run": str(found.get("run")), "cluster": str(found.get("cluster")), "time": float(found.get("time") or 0.0)}


def decide(run: Run, name: str, cluster: str) -> Holder:
    """Give the claim to the try of that name, unless another one has it. Returns who has it, for good."""
    decision = {"run": name, "cluster": cluster, "time": round(time.time(), 3)}
    storage.write_once(run.path / _CLAIM, storage.encode_json(decision), mode=0o600)
    if (found := claim(run)) is None:
        raise StorageError(f"{run.path / _CLAIM} cannot be read")
    return found


def was_made(each: Run) -> bool:
    """Whether the try was created: a launcher that was killed may only have noted it."""
    return os.path.lexists(each.path / "run.json")


def move(run: Run, name: str, cluster: str) -> None:
    """Give the claim to another try; the one that had it has ended, and the caller holds the run's lock."""
    decision = {"run": name, "cluster": cluster, "time": round(time.time(), 3)}
    storage.write_whole(run.path / _CLAIM, storage.encode_json(decision), mode=0o600)
