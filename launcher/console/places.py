"""Which ranks run on which host, once the nodes have met: a table for runs whose hosts the cluster chooses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent.named_tuple import NamedTuple
from launcher.agent.system.folding import folded, ranges
from launcher.console import tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ROWS = 8
"""More nodes share rows, if their hosts have consecutive numbers."""

_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)")


class Place(NamedTuple):
    """One node."""

    host: str
    node: int
    ranks: tuple[int, ...]
    role: str = ""


class Places:
    """Collects what the nodes report when they start and meet."""

    def __init__(self, *, shown: bool) -> None:
        """`shown`: make the table."""
        self.hosts: dict[int, str] = {}
        """By node, as reported by agents: the plan may leave the choice to the scheduler."""

        self._wanted = shown
        self._round: tuple[object, object] = (None, None)
        self._met: dict[int, Place] = {}
        self._shown: list[Place] = []

    def met(self, node: int, fields: Mapping[str, Any]) -> list[str]:
        """Take a `rendezvous` event into account; the table's lines once all nodes have sent one, and if it is new."""
        now = (fields.get("attempt"), None if fields.get("role") else fields.get("round"))
        if now != self._round:
            self._round, self._met = now, {}
        ranks = fields.get("ranks")
        held = tuple(ranks) if isinstance(ranks, list) else ()
        self._met[node] = Place(self.hosts.get(node) or "?", node, held, str(fields.get("role") or ""))
        found = [self._met[node] for node in sorted(self._met)]
        if not self._wanted or len(found) != fields.get("all_nodes", fields.get("nodes")) or found == self._shown:
            return []
        self._shown = found
        heads = ("HOST", "NODE", *(("ROLE",) if any(place.role for place in found) else ()), "RANKS")
        return tables.table(heads, rows(found), output.STDERR).splitlines()


def rows(places: Sequence[Place]) -> list[tuple[str, ...]]:
    """The rows of the table: `n[1-64]  0-63  0-511` stands for many nodes; with a column of roles if there are any."""
    groups: list[list[Place]] = []
    for place in places:
        if len(places) > _ROWS and groups and _follows(groups[-1][-1], place):
            groups[-1].append(place)
        else:
            groups.append([place])
    return [
        (
            folded((place.host for place in group), few=1),
            ranges(place.node for place in group),
            *((group[0].role,) if group[0].role else ()),
            ranges(rank for place in group for rank in place.ranks) or "-",
        )
        for group in groups
    ]


def _follows(before: Place, place: Place) -> bool:
    one, two = _NUMBERED.fullmatch(before.host), _NUMBERED.fullmatch(place.host)
    if one is None or two is None or place.node != before.node + 1 or place.role != before.role:
        return False
    return (one[1], str(int(one[2]) + 1).zfill(len(one[2])), one[3]) == (two[1], two[2], two[3])
