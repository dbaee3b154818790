"""Results about what the ranks of a run do right now."""

from __future__ import annotations

from typing import TypedDict


class _Frame(TypedDict):
    function: str
    file: str
    line: int


class StackFrame(_Frame, total=False):
    """One call in a stack."""

    text: str
    """The line itself, in the innermost of the script's own frames."""


class StackGroup(TypedDict):
    """Ranks that do the same."""

    ranks: list[int]
    nodes: list[int]
    """The nodes of these ranks."""

    hosts: list[str]
    """Their hosts, in the same order."""

    summary: str
    """What they do, in words."""

    frames: list[StackFrame]
    """Calls of the main thread, innermost first; empty if the process could not answer."""

    threads: list[list[StackFrame]]
    """Those of the other threads of the first of these ranks."""

    state: str | None
    """In the kernel's words, of a process that could not answer."""


class SilentNode(TypedDict):
    """A node that has not answered."""

    node: int
    host: str
    why: str


class Stacks(TypedDict):
    """What all ranks of a run do, the largest group first."""

    run: str
    groups: list[StackGroup]
    silent: list[SilentNode]
    """Nodes of which nothing is known."""
