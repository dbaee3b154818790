"""Pairs of nodes with trouble between them: which node is to blame, and a text for its partners."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from launcher.agent.system.folding import folded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def culprits(pairs: Iterable[tuple[int, int]]) -> Iterable[tuple[int, list[int]]]:
    """The node that is in most of the pairs, with its partners; then the same for the remaining pairs."""
    left = {frozenset(pair) for pair in pairs}
    while left:
        often = Counter(node for pair in left for node in pair)
        node = min(often, key=lambda node: (-often[node], node))
        yield node, sorted(other for pair in left if node in pair for other in pair - {node})
        left = {pair for pair in left if node not in pair}


def some(nodes: Sequence[int], hosts: Mapping[int, str]) -> str:
    """`n1, n2` or `7 hosts (n[1-7])`."""
    names = [str(hosts.get(node, f"node {node}")) for node in nodes]
    return folded(names) if len(names) <= 3 else f"{len(names)} hosts ({folded(names)})"
