"""What an environment has lost since it was complete.

Services that clean temporary directories remove what was not read for weeks, as sources that have bytecode, and a
power loss leaves files empty or cut off. What a run has installed stays.
"""

from __future__ import annotations

import os
from typing import List, Optional

from .manifest import CONDA, STAMP_S, File, Manifest
from .store import ORIGINALS, Store


def lost(store: Store, digest: str, manifest: Manifest) -> Manifest:
    """The part of the manifest that is not there; all of it if the environment was never complete."""
    if not store.is_complete(digest):
        return manifest
    top = store.environment(digest)
    found = _Packages(top)
    files = [file for file in manifest.files if _is_lost(store, top, file, manifest) and not found.replaced(file.path)]
    links = [(path, link) for path, link in manifest.links if not os.path.lexists(os.path.join(top, path))]
    return manifest._replace(files=files, links=links)


def _is_lost(store: Store, top: str, file: File, manifest: Manifest) -> bool:
    """Whether a file is missing, or cut off; one of another time was installed by a run."""
    try:
        about = os.lstat(f"{top}/{file.path}")
    except (FileNotFoundError, NotADirectoryError):
        return True
    if about.st_size == file.size or (about.st_size and about.st_mtime != STAMP_S):
        return False
    return not about.st_size or not (manifest.kind == CONDA or _is_changed(store, top, file))


def _is_changed(store: Store, top: str, file: File) -> bool:
    """Whether the file differs from its content, as it names its place."""
    return os.path.lexists(os.path.join(top, ORIGINALS, os.path.basename(store.object(file))))


class _Packages:
    """The packages of which a run has installed another version: what describes the former one stays away."""

    def __init__(self, top: str) -> None:
        self._top = top
        self._names: dict[str, List[str]] = {}

    def replaced(self, path: str) -> bool:
        """Whether this missing file describes a package of which there is another version."""
        directory, about = os.path.split(os.path.dirname(path))
        name = self._name(about)
        return name is not None and any(
            other != about and self._name(other) == name for other in self._entries(directory)
        )

    def _entries(self, directory: str) -> List[str]:
        if directory not in self._names:
            try:
                self._names[directory] = os.listdir(os.path.join(self._top, directory))
            except OSError:
                self._names[directory] = []
        return self._names[directory]

    @staticmethod
    def _name(about: str) -> Optional[str]:
        stem, ending = os.path.splitext(about)
        return stem.partition("-")[0].lower() if ending == ".dist-info" else None
