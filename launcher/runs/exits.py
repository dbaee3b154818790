"""Results of nodes whose streams are not brought here: their agents' exit codes tell them."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.runs.liveness import Liveness
    from launcher.runs.outcome import RunReport


def added_to(report: RunReport, liveness: Liveness | None) -> RunReport:
    """The report, with results that only the cluster knows; not for good, as such a node may start again."""
    if liveness is None or not liveness.exits:
        return report
    found = copy(report)
    found.nodes = [
        node if node.result is not None else replace(node, result=liveness.exits.get(node.node))
        for node in report.nodes
    ]
    return found
