"""Nodes whose streams are not brought here: what the cluster, and node 0, tell of them."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from launcher.system.dataclass import replace

if TYPE_CHECKING:
    from launcher.runs.liveness import Liveness, Unread
    from launcher.runs.node_report import NodeReport
    from launcher.runs.outcome import RunReport


def added_to(report: RunReport, liveness: Liveness | None) -> RunReport:
    """The report, with what is known of such nodes; not for good, as they may start again."""
    if liveness is None or not liveness.unread:
        return report
    found = copy(report)
    found.nodes = [
        _known(node, liveness.unread[node.node], report.nodes[0])
        if node.result is None and node.node in liveness.unread
        else node
        for node in report.nodes
    ]
    return found


def _known(node: NodeReport, told: Unread, first: NodeReport) -> NodeReport:
    """The node as its pod tells; while it runs, it does what node 0 does, as the nodes of a run work together."""
    node = replace(node, host=node.host or told.host, started=node.started or first.started)
    if told.result is not None:
        return replace(node, result=told.result, workers=0)
    return replace(node, last_seen=first.last_seen, workers=None if first.role else first.workers)
