"""Tables of many hosts: those of which a table tells the same share a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.agent.system.folding import folded as folded_names
from launcher.agent.system.folding import ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

MANY = 32
"""Tables of more hosts are folded."""

PIECES = 8
"""A cell has room for so many names or ranges."""

_Row = tuple[object, ...]


def folded(rows: Sequence[_Row], *, host: int = 0, node: int | None = 1) -> list[_Row]:
    """The rows of a long table, of which those that differ only in the columns `host` and `node` are one."""
    if len(rows) <= MANY:
        return [*rows]
    alike: dict[_Row, list[_Row]] = {}
    for row in rows:
        alike.setdefault(tuple(cell for column, cell in enumerate(row) if column not in (host, node)), []).append(row)
    return [same[0] if len(same) == 1 else _one(same, host, node) for same in alike.values()]


def _one(same: Sequence[_Row], host: int, node: int | None) -> _Row:
    """One row for all of them."""
    row = [*same[0]]
    row[host] = folded_names((each[host] for each in same), PIECES)
    if node is not None:
        row[node] = cell([number for each in same if isinstance(number := each[node], int)])
    return tuple(row)


def cell(numbers: Sequence[int]) -> str:
    """Numbers of nodes or ranks: `0-3,7`; of very many that are not consecutive, the first ranges."""
    text = ranges(numbers)
    return text if text.count(",") < PIECES else folded_names(sorted(numbers), PIECES)
