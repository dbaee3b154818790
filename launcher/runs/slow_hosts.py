"""Hosts that were slower than the others for most of a run, from the samples in its streams."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.runs import stragglers
from launcher.runs.progress import WINDOW_S
from launcher.runs.samples import Series
from launcher.runs.tails import StreamSearch
from launcher.system import input_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from launcher.agent.protocol import Event
    from launcher.results.progress import Finding
    from launcher.runs.records import Run
    from launcher.runs.samples import NodeSample

_FEWEST_HOSTS = 3
"""Among fewer hosts there are no others."""

_WINDOWS = 24
"""At most so many parts of a run are compared, evenly spread."""

_KEPT = 4000
_BLOCK_BYTES = 1 << 20


def read(run: Run, hosts: Sequence[str]) -> list[Finding]:
    """Those of a run; the worst first."""
    nodes = {node: found for node in range(len(hosts)) if (found := _samples(run, node))}
    return lasting(nodes, hosts)


def lasting(nodes: Mapping[int, Sequence[NodeSample]], hosts: Sequence[str]) -> list[Finding]:
    """One finding, the latest, for each host of which all ranks were odd in more than half of the run's windows."""
    if len(nodes) < _FEWEST_HOSTS:
        return []
    seen: dict[int, list[Finding]] = {}
    ends = _ends(nodes)
    for end in ends:
        now = {node: before for node, series in nodes.items() if (before := _window(series, end))}
        for finding in _of_hosts(stragglers.find(now, hosts), now):
            seen.setdefault(finding["node"], []).append(finding)
    often = {node: found for node, found in seen.items() if 2 * len(found) > len(ends)}
    return [found[-1] for _, found in sorted(often.items(), key=lambda item: -len(item[1]))]


def _ends(nodes: Mapping[int, Sequence[NodeSample]]) -> list[float]:
    """When the windows end: of a run that is shorter than two, there is one."""
    first = min(series[0].time for series in nodes.values())
    last = max(series[-1].time for series in nodes.values())
    count = max(1, min(_WINDOWS, int((last - first) / WINDOW_S)))
    return [first + (last - first) * (number + 1) / count for number in range(count)]


def _window(series: Sequence[NodeSample], end: float) -> list[NodeSample]:
    return [sample for sample in series if end - WINDOW_S <= sample.time <= end]


def _of_hosts(found: Sequence[Finding], nodes: Mapping[int, Sequence[NodeSample]]) -> Iterator[Finding]:
    """Those that tell something of the host, one for each: not of a rank, or of what only rank 0 does."""
    known: set[int] = set()
    for finding in found:
        node = finding["node"]
        whole = finding["rank"] is None or len(nodes[node][-1].ranks) == 1
        own_work = finding["kind"] == "idle_gpu" or (finding["kind"] == "busy" and node == 0)
        if whole and not own_work and node not in known:
            known.add(node)
            yield finding


def _samples(run: Run, node: int) -> list[NodeSample]:
    """A node's samples; its workers' lines are searched, not parsed."""
    series = Series(_KEPT)
    with suppress(OSError):
        for event in _events(run, node):
            series.add(event)
    return [sample for sample in series.samples if sample.ranks]


def _events(run: Run, node: int) -> Iterator[Event]:
    search = StreamSearch(node, 1)
    with input_file.open_file(run.stream_path(node)) as file:
        while data := file.read(_BLOCK_BYTES):
            yield from search.feed(data)
    yield from search.close()
