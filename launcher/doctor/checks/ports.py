"""TCP ports between the nodes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from launcher.doctor.check import Check
from launcher.doctor.findings import Finding
from launcher.doctor.pairs import culprits, some

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_SHUT = {
    "no answer": "no answer: a firewall drops them",
    "refused": "refused, though it listens: a firewall rejects them",
}


def ports(first: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """Ports that do not open although a process listens, on the hosts that are part of most such pairs."""
    shut: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for report in first:
        for node, what, why in report.get("paths", {}).get("blocked", ()):
            if why != "stalled":
                shut.setdefault((report["node"], node), []).append((what, why))
    hosts = {report["node"]: report["host"] for report in first}
    for node, others in culprits(shut):
        inward = [pair for pair in shut if pair[1] == node and pair[0] in others]
        blocked = [it for pair in inward or shut if node in pair and set(pair) <= {node, *others} for it in shut[pair]]
        names = _joined({what for what, _ in blocked})
        whys = ", ".join(sorted({_SHUT.get(why, f"{why}: rejected by a firewall, or no route") for _, why in blocked}))
        what = f"TCP ports {names} " + ("do not open from" if inward else "cannot be opened on")
        fix = (
            f"let TCP {names} through between the nodes: nft list ruleset, firewall-cmd --list-all, "
            "security groups, policies"
        )
        yield Finding(node, "ports", "fail", f"{what} {some(others, hosts)} ({whys})", fix)


def _joined(ranges: Iterable[str]) -> str:
    """`10-19, 20-29, 40 (x)` as `10-29, 40 (x)`."""
    found: list[str] = []
    for text in sorted(ranges, key=lambda text: int(re.split(r"\D", text)[0])):
        first, _, last = text.partition("-")
        before = found[-1].rpartition("-") if found else ("", "", "")
        if last and before[0] and int(before[2]) + 1 == int(re.split(r"\D", first)[0]):
            found[-1] = f"{before[0]}-{last}"
        else:
            found.append(text)
    return ", ".join(found)


CHECK = Check(6, lambda told: ports(told.first), needs="paths")
