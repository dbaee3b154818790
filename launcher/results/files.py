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


class FetchedNode(TypedDict):
    """A node from which files were fetched."""

    node: int
    output_dir: str
    """Where they are there: on its host, or in its pod."""

    to: str
    """The directory here for the node's files."""


class Fetched(TypedDict):
    """Files of a run that were fetched."""

    run: str
    to: str
    """The directory here."""

    files: list[File]
    left_out: list[LeftOut]
    nodes: list[FetchedNode]
    """One of a run whose nodes share a directory that is also here."""
