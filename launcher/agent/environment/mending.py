"""What an environment has lost since it was complete.

Services that clean temporary directories remove what was not read for weeks, as sources that have bytecode, and a
power loss leaves files empty or cut off. What a run has installed stays.
"""

from __future__ import annotations

import csv
import os
import re
from typing import Dict, List, Set

from .manifest import CONDA, STAMP_S, File, Manifest
from .store import ORIGINALS, Store

_ABOUT = ".dist-info"


def lost(store: Store, digest: str, manifest: Manifest) -> Manifest:
    """The part of the manifest that is not there; all of it if the environment is not complete."""
    return missing(store, digest, manifest) if store.is_complete(digest) else manifest


def missing(store: Store, digest: str, manifest: Manifest) -> Manifest:
    """The part of the manifest that is not in the environment's directory, or cut off there."""
    top = store.environment(digest)
    files = [file for file in manifest.files if _is_lost(store, top, file, manifest)]
    links = [(path, link) for path, link in manifest.links if not os.path.lexists(os.path.join(top, path))]
    if files:
        replaced = _replaced(store, top, manifest, files)
        files = [file for file in files if file.path not in replaced]
    return manifest._replace(files=files, links=links)


def _is_lost(store: Store, top: str, file: File, manifest: Manifest) -> bool:
    """Whether a file is missing, or cut off; one of another time was installed by a run."""
    try:
        about = os.lstat(f"{top}/{file.path}")
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False  # a run has put a file in the place of a directory
    if about.st_size == file.size or about.st_mtime != STAMP_S:
        return False
    return not about.st_size or not (manifest.kind == CONDA or _is_changed(store, top, file))


def _is_changed(store: Store, top: str, file: File) -> bool:
    """Whether the file differs from its content, as it names its place."""
    return os.path.lexists(os.path.join(top, ORIGINALS, os.path.basename(store.object(file))))


def _replaced(store: Store, top: str, manifest: Manifest, files: List[File]) -> Set[str]:
    """The paths of packages of which a run has installed another version, which may not have all files of the former.

    They are listed in the former one's RECORD, as the packaging standards say ("Recording installed projects").
    """
    found: Set[str] = set()
    names: Dict[str, List[str]] = {}
    for about in {above for file in files for above in _abouts(file.path)}:
        directory, own = os.path.split(about)
        if directory not in names:
            names[directory] = _packages(os.path.join(top, directory))
        if any(other != own and _normalized(other) == _normalized(own) for other in names[directory]):
            found.update(file.path for file in manifest.files if file.path.startswith(f"{about}/"))
            found.update(_recorded(store, manifest, about))
    return found


def _abouts(path: str) -> List[str]:
    """The directory above that describes a package, if there is one."""
    parts = path.split("/")
    return ["/".join(parts[: at + 1]) for at, part in enumerate(parts[:-1]) if part.endswith(_ABOUT)]


def _packages(directory: str) -> List[str]:
    try:
        return [name for name in os.listdir(directory) if name.endswith(_ABOUT)]
    except OSError:
        return []


def _normalized(about: str) -> str:
    """A package's name, by PEP 503, from the name of the directory that describes it."""
    return re.sub(r"[-_.]+", "_", about[: -len(_ABOUT)].partition("-")[0]).lower()


def _recorded(store: Store, manifest: Manifest, about: str) -> List[str]:
    """The files of the package that was brought, as far as that is still known here."""
    record = next((file for file in manifest.files if file.path == f"{about}/RECORD"), None)
    if record is None or not store.has(record):
        return []
    with open(store.object(record), encoding="utf-8", errors="surrogateescape", newline="") as text:
        return [os.path.normpath(os.path.join(os.path.dirname(about), row[0])) for row in csv.reader(text) if row]
