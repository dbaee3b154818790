"""What the latest samples of a run tell: how far it is, and what is odd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.agent.protocol import Event
from launcher.errors import StorageError
from launcher.runs import progress, samples, status, stragglers
from launcher.runs.hanging import Hanging

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.results.progress import Watched
    from launcher.results.run import RunState
    from launcher.runs.records import Run
    from launcher.runs.samples import NodeSample

_KEPT = 10_000
"""More than fit into the ends of a stream: none is left out."""


def of(run: Run, state: RunState) -> Watched:
    """From both ends of the nodes' streams in the run's directory."""
    if run.tasks or run.private or not state["nodes"]:
        return {"progress": None, "findings": []}
    nodes: dict[int, Sequence[NodeSample]] = {}
    hanging = Hanging()
    for node in range(len(run.hosts)):
        series = samples.Series(_KEPT)
        try:
            for record in status.ends(run.stream_path(node)):
                if isinstance(record, Event):
                    series.add(record)
                    hanging.add(node, record)
        except StorageError:
            continue
        if series.samples:
            nodes[node] = series.samples
    return by(nodes, hanging, state)


def by(nodes: Mapping[int, Sequence[NodeSample]], hanging: Hanging, state: RunState) -> Watched:
    """From these samples of its nodes, and the hang that they have reported."""
    ended, hosts = state["exit_code"] is not None, [node.get("host", "") for node in state["nodes"]]
    found: Watched = {
        "progress": progress.of_run(nodes, ended=ended),
        "findings": [] if ended else stragglers.find(nodes, hosts),
    }
    return found if ended else hanging.added_to(found, nodes, hosts)
