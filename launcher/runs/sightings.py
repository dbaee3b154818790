"""Since when a lock looks the same, over several commands: a look at a run is too short to see that an owner is silent.

lock-seen  what looks have seen of the lock of an owner that seems gone, and since when each host has seen just that
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.errors import StorageError
from launcher.system import storage

if TYPE_CHECKING:
    from pathlib import Path

_NOTE = "lock-seen"


def since(directory: Path, machine: str, sight: list[object]) -> float | None:
    """When a look from this boot of this host first saw the lock so, on its monotonic clock; None: none has."""
    return _seen(directory, sight).get(machine)


def note(directory: Path, machine: str, sight: list[object]) -> None:
    """Note that the lock looks so now. Without room for that, the next look begins anew."""
    seen = {**_seen(directory, sight), machine: time.monotonic()}
    with suppress(StorageError):
        storage.write_whole(directory / _NOTE, storage.encode_json({"lock": sight, "seen": seen}), mode=0o600)


def forget(directory: Path) -> None:
    """The lock has another owner."""
    with suppress(OSError):
        (directory / _NOTE).unlink()


def _seen(directory: Path, sight: list[object]) -> dict[str, float]:
    noted = storage.read_json(directory / _NOTE) or {}
    seen = noted.get("seen")
    if noted.get("lock") != sight or not isinstance(seen, dict):
        return {}
    now = time.monotonic()
    return {name: when for name, when in seen.items() if isinstance(when, (int, float)) and 0 <= when <= now}
