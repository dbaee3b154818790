"""Reports of doctor's job, validated: a node may be hostile, and its reports count for itself only."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from launcher.agent.protocol import Event, Output
from launcher.runs import events
from launcher.system import numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.agent.protocol import Record

_PREFIX = b"doctor: "
_HELD_BYTES = 16 << 20
"""Limit of unfinished lines per node; a report of 10,000 ranks has less than a megabyte."""

_PORTS = re.compile(r"\d{1,5}(-\d{1,5}| \([A-Z_]+\))?", re.ASCII)
_LINK = re.compile(r"[\x20-\x7e]{0,100}")
_LISTS = ("gbytes_per_s", "latency_s")


class Reports:
    """Collects the ranks' reports and each node's facts from the agent streams."""

    def __init__(self, nodes: int) -> None:
        self.done = 0
        self._nodes = nodes
        self._reports: dict[int, dict[int, dict[str, Any]]] = {}
        self._facts: dict[int, dict[str, Any]] = {}
        self._notes: dict[int, list[str]] = {}
        self._ranks: dict[int, dict[int, int]] = {}
        """By node: its ranks, with their local ranks."""

        self._held: dict[int, dict[int, bytes]] = {}

    def take(self, node: int, record: Record) -> None:
        """Process a record of that node's stream. A node has the ranks in its rendezvous event."""
        if isinstance(record, Output):
            if not record.stderr and record.rank in self._ranks.get(node, ()):
                self._take_lines(node, record)
        elif isinstance(record, Event):
            self.done += record.name == "done"
            if record.name == "rendezvous":
                self._ranks[node] = {rank: local for local, rank in enumerate(record.fields.get("ranks") or [])}
            elif record.name == events.FACTS:
                self._facts[node] = record.fields
            elif record.name == "fabric":
                self._notes[node] = list(record.fields.get("notes") or ())

    def _take_lines(self, node: int, record: Output) -> None:
        held = self._held.setdefault(node, {})
        lines = held.pop(record.rank, b"") + record.data
        if not record.ends_line:
            held[record.rank] = lines
            if sum(map(len, held.values())) > _HELD_BYTES:
                held.clear()
            return
        for line in lines.splitlines():
            told = _report(line[len(_PREFIX) :]) if line.startswith(_PREFIX) else None
            if told is not None and (told["rank"], told["local_rank"]) == (record.rank, self._ranks[node][record.rank]):
                for name, rows in told.get("paths", {}).items():
                    told["paths"][name] = [row for row in rows if row[0] < self._nodes and row[0] != node]
                # A later report of a rank adds to its earlier one.
                self._reports.setdefault(node, {}).setdefault(record.rank, {}).update(told, node=node)

    @property
    def claimed_twice(self) -> dict[int, list[int]]:
        """Ranks that several nodes claim, with those nodes. Their true owner cannot be determined."""
        of_rank: dict[int, list[int]] = {}
        for node, ranks in sorted(self._ranks.items()):
            for rank in ranks:
                of_rank.setdefault(rank, []).append(node)
        return {rank: nodes for rank, nodes in of_rank.items() if len(nodes) > 1}

    @property
    def reports(self) -> list[dict[str, Any]]:
        """Reports by rank, without nodes that claim the same rank, and without comparisons that lack ranks."""
        unsure = {node for nodes in self.claimed_twice.values() for node in nodes}
        found = {
            rank: dict(told) for node, of in self._reports.items() if node not in unsure for rank, told in of.items()
        }
        sizes = Counter(len(told["gbytes_per_s"]) for told in found.values() if "gbytes_per_s" in told)
        world = sizes.most_common(1)[0][0] if sizes else None
        for told in found.values():
            if any(len(told.get(name, ())) != world for name in _LISTS):
                for name in _LISTS:
                    told.pop(name, None)
        return [told for rank, told in sorted(found.items()) if world is None or rank < world]

    @property
    def facts(self) -> dict[int, dict[str, Any]]:
        """Facts by node, with the node's notes."""
        sound = {node: about for node, about in self._facts.items() if _fits(about, _FACTS)}
        return {node: {**about, "notes": self._notes.get(node, [])} for node, about in sound.items()}


def _report(line: bytes) -> dict[str, Any] | None:
    """The known fields of the report on a line; None if it is not a valid one."""
    try:
        told = numbers.loads(line)
    except (ValueError, RecursionError):
        return None
    if not _fits(told, _NEEDED):
        return None
    known = {name: told[name] for name, kind in {**_NEEDED, **_MORE}.items() if name in told and kind(told[name])}
    paths = known.pop("paths", None)
    if paths is None:
        return known
    return {**known, "paths": {name: paths[name] for name in ("blocked", "narrow") if paths.get(name) is not None}}


def _fits(value: object, kinds: Mapping[str, Callable[[Any], bool]]) -> bool:
    """Whether the value is an object with all of these fields."""
    return isinstance(value, dict) and all(kind(value.get(name)) for name, kind in kinds.items())


def _all(values: object, kind: Callable[[Any], bool]) -> bool:
    return isinstance(values, (list, tuple)) and all(map(kind, values))


def _texts(value: object) -> bool:
    return isinstance(value, dict) and _all(list(value.values()), _text)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _matches(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _count(value: object) -> bool:
    return isinstance(value, int) and numbers.is_number(value) and value >= 0


def _amount(value: object) -> bool:
    return isinstance(value, (int, float)) and numbers.is_number(value) and value >= 0


def _maybe(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or kind(value)


def _each(kinds: Mapping[str, Callable[[Any], bool]]) -> Callable[[Any], bool]:
    return lambda values: _all(values, lambda one: _fits(one, kinds))


def _disks(value: object) -> bool:
    return isinstance(value, dict) and all(map(_disk, value.values()))


def _disk(about: object) -> bool:
    error = about.get("error") if isinstance(about, dict) else 0
    return _text(error) or (error is None and _fits(about, {"free": _amount, "total": _amount}))


def _row(*kinds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda row: (
        isinstance(row, list) and len(row) == len(kinds) and all(k(v) for k, v in zip(kinds, row, strict=True))
    )


def _paths(value: object) -> bool:
    blocked, narrow = _row(_count, _matches(_PORTS), _text), _row(_count, _maybe(_count), _count)
    return _fits(
        value, {"blocked": lambda rows: _all(rows, blocked), "narrow": _maybe(lambda rows: _all(rows, narrow))}
    )


_NEEDED: dict[str, Callable[[Any], bool]] = {
    "rank": _count,
    "local_rank": _count,
    "host": _text,
    "versions": _texts,
    "disks": _disks,
}
_MORE: dict[str, Callable[[Any], bool]] = {
    "machine": _text,
    "paths": _paths,
    "clock_offset_s": numbers.is_number,
    "gemm_tflops": lambda value: _amount(value) and value > 0,
    **dict.fromkeys(_LISTS, lambda values: _all(values, _amount)),
}
_OF_GPU: dict[str, Callable[[Any], bool]] = {
    "index": _count,
    "driver": _text,
    "xid": lambda values: _all(values, _count),
    "ecc_uncorrected": _maybe(_count),
    "pcie": _matches(_LINK),
    "links": _texts,
}
_OF_NIC: dict[str, Callable[[Any], bool]] = {
    "name": _text,
    "mtu": _count,
    "kind": _text,
    "addresses": lambda values: _all(values, _text),
}
_FACTS: dict[str, Callable[[Any], bool]] = {
    "limits": lambda value: _fits(value, dict.fromkeys(("memlock_bytes", "open_files", "shm_bytes"), _maybe(_count))),
    "hcas": _each({"name": _text, "port": _count, "state": _text, "rate_gbps": _amount}),
    "nics": _each(_OF_NIC),
    "gpus": _each(_OF_GPU),
}
