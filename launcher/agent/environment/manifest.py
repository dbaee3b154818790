"""What an environment consists of: its files, by content, and its links. All nodes of a run have the same manifest."""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ..named_tuple import NamedTuple

PIECE_BYTES = 4 << 20
"""Files travel in pieces of this size: a node passes a piece on while it receives the next one."""

STAMP_S = 1577836800
"""The modification time of all files: bytecode names that of its source, and files of equal content are one file."""

ENV, BASE = "env", "base"
"""The two directories of an environment: itself, and the Python that a virtual environment is based on."""

VENV, PREFIX, CONDA = "venv", "prefix", "conda"
_FORMAT = 1
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_MAX_BYTES = 1 << 50


class BringError(Exception):
    """The environment cannot be listed, brought or used; the message is for the user."""


class File(NamedTuple):
    """A regular file."""

    path: str
    executable: bool
    size: int
    digests: List[str]
    """SHA-256 of each piece."""

    @property
    def name(self) -> str:
        """Names the content: files of equal names are equal."""
        if len(self.digests) == 1:
            return self.digests[0]
        return hashlib.sha256("".join(self.digests).encode("ascii")).hexdigest()


class Manifest(NamedTuple):
    """All of an environment."""

    kind: str
    """A virtual environment, a Python with its packages in one directory, or one that conda-pack has packed."""

    source: str
    """The directory that it was listed from: absolute paths in its scripts begin with it."""

    base: Optional[str]
    """The directory of the Python that a virtual environment is based on, if it travels, too."""

    home: Optional[str]
    """The directory of the base Python that must be on each node instead; None: it travels."""

    python: str
    """The interpreter's path in the environment."""

    tag: str
    """That of its bytecode, such as `cpython-311`."""

    files: List[File]
    links: List[Tuple[str, str]]
    notes: List[str]
    """What the user should know."""

    @property
    def total_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        """As a file; the same for equal manifests."""
        fields = {**self._asdict(), "files": [[*file] for file in self.files], "format": _FORMAT}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")


def digest_of(encoded: bytes) -> str:
    """Names the environment."""
    return hashlib.sha256(encoded).hexdigest()


def decode(encoded: bytes) -> Manifest:
    """The manifest in a file. Raises `BringError` if it is none, or if it would write outside of its directory."""
    try:
        return _decoded(json.loads(encoded))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BringError(f"the list of the environment's files is damaged: {error}") from error


def _decoded(fields: Dict[str, Any]) -> Manifest:
    if fields.pop("format") != _FORMAT:
        raise ValueError("launcher and agent differ in version")
    files = [File(*file) for file in fields.pop("files")]
    links = [(str(path), str(target)) for path, target in fields.pop("links")]
    found = Manifest(files=files, links=links, **fields)
    links_above = {path for path, _ in links}
    for path in [*(file.path for file in files), *links_above, found.python]:
        _check_path(path)
        if path != found.python and not links_above.isdisjoint(_above(path)):
            raise ValueError(f"{path!r} leads through a link")
    for file in files:
        _check_file(file)
    return found


def _above(path: str) -> Iterator[str]:
    while path := os.path.dirname(path):
        yield path


def _check_path(path: str) -> None:
    parts = path.split("/")
    if parts[0] not in (ENV, BASE) or len(parts) < 2 or any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise ValueError(f"{path!r} leads out of its directory")


def _check_file(file: File) -> None:
    pieces = max(1, -(-file.size // PIECE_BYTES))
    if not 0 <= file.size <= _MAX_BYTES or len(file.digests) != pieces or not all(map(_DIGEST.match, file.digests)):
        raise ValueError(f"{file.path!r} has no valid content")
