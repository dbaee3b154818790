"""What is remembered here of the stores of clusters: their names, and which packs they have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from launcher.system import storage, trust

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.payload.snapshot_file import File

_MOST_PACKS = 24


def _directory() -> Path:
    directory = Path.home() / ".distlaunch" / "stores"
    trust.make("directory", directory)
    return directory


def packs(store: str) -> dict[str, list[str]]:
    """The packs that were sent to the store of this name, oldest first, with the SHA-256 of each file."""
    found = (storage.read_json(_directory() / f"{store}.json") or {}) if store.isalnum() else {}
    known = found.get("packs")
    return known if isinstance(known, dict) else {}


def write(store: str, known: Mapping[str, list[str]]) -> None:
    """Remember these packs."""
    storage.write_whole(_directory() / f"{store}.json", storage.encode_json({"packs": known}), mode=0o600)


def without(store: str, known: Mapping[str, list[str]], absent: set[str]) -> dict[str, list[str]]:
    """Forget the packs that are absent, as they would take the place of those that exist; returns the others."""
    kept = {name: found for name, found in known.items() if name not in absent}
    if len(kept) < len(known):
        write(store, kept)
    return kept


def assumed(key: str) -> str:
    """The name of the store that was last at this place."""
    found = storage.read_json(_directory() / "places.json") or {}
    return str(found.get(key, ""))


def assume(key: str, store: str) -> None:
    """Remember that this store is there."""
    path = _directory() / "places.json"
    found = storage.read_json(path) or {}
    if found.get(key) != store:
        storage.write_whole(path, storage.encode_json({**found, key: store}), mode=0o600)


def covering(known: Mapping[str, list[str]], wanted: Mapping[str, File]) -> dict[str, list[str]]:
    """The packs that have wanted files: those with the most first, of equal ones the latest, none that adds nothing.

    If there are too many, the others' files are sent again.
    """
    counted = ((sum(sha in wanted for sha in found), age, name) for age, (name, found) in enumerate(known.items()))
    there: set[str] = set()
    useful = []
    for _, _, name in sorted(counted, reverse=True):
        if new := (wanted.keys() & known[name]) - there:
            useful.append(name)
            there |= new
    return {name: known[name] for name in (useful if len(useful) <= _MOST_PACKS else useful[: _MOST_PACKS // 2])}
