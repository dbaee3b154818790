"""Packet sizes between the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.doctor.check import Check
from launcher.doctor.findings import Finding
from launcher.doctor.pairs import culprits, some

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def mtus(first: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """Packet sizes that the interfaces at both ends accept, but the path between them does not."""
    told = [(report["node"], report.get("paths", {})) for report in first]
    stalled = {(node, other) for node, about in told for other, _, why in about.get("blocked", ()) if why == "stalled"}
    narrow = {
        (node, other): (passes, should) for node, about in told for other, passes, should in about.get("narrow", ())
    }
    silent = {pair for pair, (passes, _) in narrow.items() if passes is None} - stalled
    hosts = {report["node"]: report["host"] for report in first}
    for node, others in culprits((set(narrow) | stalled) - silent):
        own = [pair for pair in {*narrow, *stalled} if node in pair and set(pair) <= {node, *others}]
        sizes = [narrow[pair] for pair in own if narrow.get(pair, (None, 0))[0]]
        stalls = any(pair in stalled for pair in own)
        passes, should = min((it[0] for it in sizes), default=None), max((it[1] for it in sizes), default=None)
        lost = (
            f"packets over {passes} bytes are lost, though interfaces take {should}"
            if sizes
            else "full packets are lost"
        )
        reason = f"{lost}, between it and {some(others, hosts)}" + "; TCP stalls" * stalls
        fix = (
            f"raise the MTU of its switch port or tunnel to {should or 'that of the interfaces'}, "
            "or lower all interfaces"
        )
        yield Finding(node, "mtu", "fail" if stalls else "warn", reason, fix)
    for node, others in culprits(silent):
        reason = f"no UDP passes between it and {some(others, hosts)}, so the path's MTU is not seen"
        yield Finding(node, "mtu", "warn", reason, "let UDP through between the nodes; RoCE needs it, too")


CHECK = Check(7, lambda told: mtus(told.first), needs="paths.narrow")
