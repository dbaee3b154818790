"""Compare the nodes' reports and facts with one another. Pure: no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.agent.failures import Failure
from launcher.doctor import checks
from launcher.doctor.check import Compared
from launcher.doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_PARTS = 8
"""The other nodes are left out in at most this many groups, as comparing thousands takes a while."""


def examine(reports: Sequence[Mapping[str, Any]], facts: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
    """All findings. `reports`: one per rank. `facts`: by node, from its agent (`docs/fabric.md`)."""
    told = Compared(reports, facts)
    return [finding for check in checks.known().values() for finding in check.judge(told)]


def lasting(reports: Sequence[Mapping[str, Any]], facts: Mapping[int, Mapping[str, Any]]) -> set[tuple[int, str]]:
    """Nodes with failed checks that do not depend on a single other node: they fail whichever group is left out."""

    def failing(without: frozenset[int]) -> set[tuple[int, str]]:
        kept = {node: about for node, about in facts.items() if node not in without}
        found = examine([report for report in reports if report["node"] not in without], kept)
        return {(finding.node, finding.check) for finding in found if finding.status == "fail"}

    nodes = sorted({report["node"] for report in reports} | set(facts))
    parts = [frozenset(nodes[part::_PARTS]) for part in range(min(_PARTS, len(nodes)))]
    found, known = failing(frozenset()), dict[frozenset[int], set[tuple[int, str]]]()
    for node, check in sorted(found):
        for part in parts:
            others = part - {node}
            if others not in known:
                known[others] = failing(others)
            if (node, check) not in known[others]:
                found.discard((node, check))
    return found


def meeting(cause: Mapping[str, Any] | None) -> Iterable[Finding]:
    """Why the nodes could not rendezvous, if the network is at fault: all others connect to a port of node 0."""
    if cause and cause.get("class") in (Failure.FABRIC, Failure.COLLECTIVE):
        fix = (
            "let TCP 10000-65535 through to this host; "
            "--master-port and a rule for one port are not enough for gloo and NCCL"
        )
        yield Finding(0, "ports", "fail", f"the others cannot reach it: {cause.get('message')}", fix)
