"""Results about the files that a run's workers have written."""

from __future__ import annotations

from typing import TypedDict


class File(TypedDict):
    """One file that is here now."""

    path: str
    """Relative to `to`."""

    bytes: int
    node: int
    """Rank of the node that it is from."""

    transferred: bool
    """Whether it was transferred; false if the same version was here already."""


class LeftOut(TypedDict):
    """A file that matches, but cannot be fetched."""

    path: str
    node: int
    why: str


class Fetched(TypedDict):
    """Files of a run that were fetched."""

    run: str
    to: str
    """The directory here."""

    files: list[File]
    left_out: list[LeftOut]
