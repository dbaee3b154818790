"""Messages about many hosts: one line for those with the same message."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from launcher.agent.system.folding import folded, ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_FEW = 3
_OWN = "\0"
"""Stands for the host's own name in a message."""


def lines(said: Mapping[str, str]) -> list[str]:
    """Each message once, with all of its hosts: `n[0-511,600]: no torch`."""
    return [f"{folded(names)}: {message}" for names, message in alike(said)]


def alike(said: Mapping[str, str]) -> Iterator[tuple[list[str], str]]:
    """Each message with its hosts. Messages that differ only in the host's own name are alike."""
    found: dict[str, list[str]] = {}
    for host, message in said.items():
        found.setdefault(_without(host, message), []).append(host)
    for message, names in found.items():
        yield names, message.replace(_OWN, folded(names))


def _without(host: str, message: str) -> str:
    return re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-]|\.\w)", _OWN, message)


def places(nodes: Sequence[int], name: Callable[[int], str]) -> str:
    """`n1 (node 1), n2 (node 2)`, or of many `n[0-7] (nodes 0-7)`."""
    if len(nodes) <= _FEW:
        return ", ".join(f"{name(node)} (node {node})" for node in nodes)
    return f"{folded(name(node) for node in nodes)} (nodes {ranges(nodes)})"
