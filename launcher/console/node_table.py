"""The nodes of a run as a table; of many nodes, how many there are of each kind, and those that are odd."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from launcher.agent.failures import Failure
from launcher.agent.system.folding import folded
from launcher.console import alike_rows, summary, tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MANY = 32
"""From more nodes than this, only a summary is printed."""

_SHOWN = 20
"""So many odd nodes, or kinds of them, have a row each."""

_LATE_S = 30.0
"""Agents send something every 10 s. What arrives this much later than from other nodes is late."""

_FINE = ("running", "success")
_WORST = (
    "failed",
    Failure.TIMEOUT,
    "lost",
    Failure.PREEMPTED,
    Failure.CANCELLED,
    "late",
    "stopping",
    "starting",
    "waiting",
)


def lines(nodes: Sequence[Mapping[str, Any]], *, whole: bool) -> list[str]:
    """The nodes of a `RunState`; `whole`: the whole table, however many there are."""
    lost = summary.lost_lines([(node.get("node"), node.get("lines_lost")) for node in nodes])
    if whole or len(nodes) <= _MANY:
        return ["", *_table([[node] for node in nodes]), *lost] if nodes else []
    newest = max((node.get("last_seen") or 0.0 for node in nodes), default=0.0)
    words = [_word(node, newest) for node in nodes]
    counts = Counter(words)
    told = ", ".join(f"{counts[word]} {word}" for word in sorted(counts, key=_rank))
    odd = [
        (_rank(word), node)
        for word, node in zip(words, nodes, strict=True)
        if word not in _FINE and (counts[word] < len(nodes) or node.get("cause"))
    ]
    shown = _alike(sorted(odd, key=lambda item: item[0]))[:_SHOWN]
    found = ["", f"nodes    {told}"]
    found += ["", *_table(shown, [_word(group[0], newest) for group in shown])] if shown else []
    left = len(odd) - sum(map(len, shown))
    more = f"{left} more like these; all" if left else "all"
    return [*found, f"({more} {len(nodes)} nodes: distlaunch status --all)", *lost]


def _alike(ranked: Sequence[tuple[int, Mapping[str, Any]]]) -> list[list[Mapping[str, Any]]]:
    """Nodes with the rank of their state, each for itself; if they are many, those that do the same together."""
    if len(ranked) <= _SHOWN:
        return [[node] for _, node in ranked]
    found: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
    for rank, node in ranked:
        found.setdefault((rank, node.get("role"), node.get("workers")), []).append(node)
    return [*found.values()]


def _word(node: Mapping[str, Any], newest: float) -> str:
    """What a node does, in one word."""
    if node.get("result"):
        return str(node["result"])
    if node.get("cause"):
        return "failed"
    if node.get("stopping"):
        return "stopping"
    if node.get("started") is None:
        return "waiting"
    if (node.get("last_seen") or 0.0) < newest - _LATE_S:
        return "late"
    return "starting" if node.get("workers") is None else "running"


def _rank(word: str) -> int:
    """The order of kinds of nodes, the worst first."""
    return _WORST.index(word) if word in _WORST else len(_WORST) + (word in _FINE)


def _table(groups: Sequence[Sequence[Mapping[str, Any]]], words: Sequence[str] = ()) -> list[str]:
    """One row per group of nodes that do the same; `words`: its state, if the column is wanted."""
    has_roles = any(group[0].get("role") for group in groups)
    rows = [
        (
            alike_rows.cell([node["node"] for node in group if isinstance(node.get("node"), int)]),
            folded((node.get("host") or "?" for node in group), alike_rows.PIECES),
            *((group[0].get("role"),) if has_roles else ()),
            alike_rows.cell([rank for node in group for rank in node.get("ranks") or ()]),
            group[0].get("workers"),
            (words[number] if words else None) or group[0].get("result") or group[0].get("stopping") or None,
            summary.age(min((seen for node in group if (seen := node.get("last_seen"))), default=None)),
        )
        for number, group in enumerate(groups)
    ]
    state = "STATE" if words else "RESULT"
    heads = ("NODE", "HOST", *(("ROLE",) if has_roles else ()), "RANKS", "RUNNING", state, "LAST SEEN")
    return tables.table(heads, rows).splitlines()
