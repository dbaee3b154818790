"""Network links that are slower than the others or than they were, that went down, or that have errors."""

from __future__ import annotations

from collections import defaultdict
from statistics import median_high
from typing import TYPE_CHECKING

from launcher.agent.named_tuple import NamedTuple
from launcher.system import amounts
from launcher.system.hosts import places

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from launcher.agent.protocol import Event
    from launcher.results.report import Observation
    from launcher.runs.samples import LinkSample, NodeSample

_LEAST_NODES = 3
_SHOWN = 6


class _Link(NamedTuple):
    """One link over the run."""

    node: int
    name: str
    best_gbps: float | None
    last_gbps: float | None
    downs: int
    errors: int


class NetworkNotes:
    """What agents have noted about the network at their start, as that RDMA cannot be used."""

    def __init__(self) -> None:
        self._notes: dict[str, set[int]] = defaultdict(set)

    def add(self, node: int, event: Event) -> None:
        """Take an event of a node into account."""
        if event.name == "fabric":
            for text in event.fields.get("notes") or ():
                self._notes[text].add(node)

    def observed(self, hosts: Sequence[str]) -> Iterator[Observation]:
        """Each note, with the nodes that have it."""
        for text, nodes in list(self._notes.items())[:_SHOWN]:
            detail = f"{_named(sorted(nodes), hosts)}: {text}"
            yield {"level": "notice", "title": "Network", "detail": detail, "nodes": sorted(nodes)}


def observed(samples: Mapping[int, Sequence[NodeSample]], hosts: Sequence[str]) -> Iterator[Observation]:
    """What the samples of all nodes tell about their links; problems first."""
    links = [link for node, series in samples.items() for link in _over_time(node, series)]
    yield from _told(
        "problem", "A link went down", hosts,
        [(link, f"{amounts.counted(link.downs, 'time')}") for link in links if link.downs],
    )  # fmt: skip
    yield from _told("problem", "A link is slower than it was", hosts, list(_slowed(links)))
    yield from _told("problem", "A link is slower than the others", hosts, list(_slower(links)))
    yield from _told(
        "notice", "A link has errors", hosts, [(link, f"{link.errors:,}") for link in links if link.errors]
    )


def _over_time(node: int, series: Sequence[NodeSample]) -> Iterator[_Link]:
    seen: dict[str, list[tuple[int, LinkSample]]] = defaultdict(list)
    for sample in series:
        for link in sample.links:
            seen[link.name].append((sample.attempt, link))
    for name, found in seen.items():
        speeds = [link.gbps for _, link in found if link.gbps]
        counts: dict[int, tuple[int, int]] = {}
        for attempt, link in found:  # an agent counts from its start
            downs, errors = counts.get(attempt, (0, 0))
            counts[attempt] = max(downs, link.downs or 0), max(errors, link.errors or 0)
        downs, errors = (sum(column) for column in zip(*counts.values(), strict=True))
        yield _Link(node, name, max(speeds, default=None), speeds[-1] if speeds else None, downs, errors)


def _slowed(links: Sequence[_Link]) -> Iterator[tuple[_Link, str]]:
    for link in links:
        if link.best_gbps and link.last_gbps and link.last_gbps < link.best_gbps:
            yield link, f"{link.last_gbps:g} Gb/s, after {link.best_gbps:g}"


def _slower(links: Sequence[_Link]) -> Iterator[tuple[_Link, str]]:
    """Compared with the links of the same name on the other nodes."""
    speeds: dict[str, list[float]] = defaultdict(list)
    for link in links:
        if link.best_gbps:
            speeds[link.name].append(link.best_gbps)
    for link in links:
        if link.best_gbps and len(speeds[link.name]) >= _LEAST_NODES:
            usual = median_high(speeds[link.name])
            if link.best_gbps < usual:
                yield link, f"{link.best_gbps:g} Gb/s, most others have {usual:g}"


def _told(level: str, title: str, hosts: Sequence[str], found: Sequence[tuple[_Link, str]]) -> Iterator[Observation]:
    """One observation for all of them."""
    if found:
        each = [f"{link.name} of {_named([link.node], hosts)}: {text}" for link, text in found]
        nodes = sorted({link.node for link, _ in found})
        yield {"level": level, "title": title, "detail": amounts.listed(each, _SHOWN), "nodes": nodes}  # type: ignore[typeddict-item]  # one of its words


def _named(nodes: Sequence[int], hosts: Sequence[str]) -> str:
    return places(nodes, lambda node: hosts[node])
