"""What the nodes' reports say of the ways between them: ports, packet sizes, speed. Pure: asks nobody."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from launcher.doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

T = TypeVar("T")
_FEW_PAIRS = 3
"""Of so few none is the usual one."""


def ports(first: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """Ports that do not open though somebody listens there: on the host that most others have trouble with."""
    shut: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for report in first:
        for node, what, why in report.get("paths", {}).get("blocked", ()):
            if why != "stalled":
                shut.setdefault((report["node"], node), []).append((what, why))
    hosts = {report["node"]: report["host"] for report in first}
    for node, others in _culprits(shut):
        inward = [pair for pair in shut if pair[1] == node and pair[0] in others]
        blocked = [it for pair in inward or shut if node in pair and set(pair) <= {node, *others} for it in shut[pair]]
        names = _joined({what for what, _ in blocked})
        whys = ", ".join(sorted({_SHUT.get(why, f"{why}: rejected by a firewall, or no route") for _, why in blocked}))
        what = f"TCP ports {names} " + ("do not open from" if inward else "cannot be opened on")
        fix = f"let TCP {names} through between the nodes: nft list ruleset, firewall-cmd --list-all, security groups, policies"
        yield Finding(node, "ports", "fail", f"{what} {_some(others, hosts)} ({whys})", fix)


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


_SHUT = {"no answer": "no answer: a firewall drops them", "refused": "refused, though it listens: a firewall rejects them"}


def mtus(first: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """Packets that both ends' interfaces take and the way between them does not."""
    told = [(report["node"], report.get("paths", {})) for report in first]
    stalled = {(node, other) for node, about in told for other, _, why in about.get("blocked", ()) if why == "stalled"}
    narrow = {(node, other): (passes, should) for node, about in told for other, passes, should in about.get("narrow", ())}
    silent = {pair for pair, (passes, _) in narrow.items() if passes is None} - stalled
    hosts = {report["node"]: report["host"] for report in first}
    for node, others in _culprits((set(narrow) | stalled) - silent):
        own = [pair for pair in {*narrow, *stalled} if node in pair and set(pair) <= {node, *others}]
        sizes = [narrow[pair] for pair in own if narrow.get(pair, (None, 0))[0]]
        stalls = any(pair in stalled for pair in own)
        passes, should = min((it[0] for it in sizes), default=None), max((it[1] for it in sizes), default=None)
        lost = f"packets over {passes} bytes are lost, though interfaces take {should}" if sizes else "full packets are lost"
        reason = f"{lost}, between it and {_some(others, hosts)}" + "; TCP stalls" * stalls
        fix = f"raise the MTU of its switch port or tunnel to {should or 'that of the interfaces'}, or lower all interfaces"
        yield Finding(node, "mtu", "fail" if stalls else "warn", reason, fix)
    for node, others in _culprits(silent):
        reason = f"no UDP passes between it and {_some(others, hosts)}, so the path's MTU is not seen"
        yield Finding(node, "mtu", "warn", reason, "let UDP through between the nodes; RoCE needs it, too")


def _culprits(pairs: Iterable[tuple[int, int]]) -> Iterable[tuple[int, list[int]]]:
    """Of pairs with trouble, the node that is in most of them with its partners; then of the rest."""
    left = {frozenset(pair) for pair in pairs}
    while left:
        often = Counter(node for pair in left for node in pair)
        node = min(often, key=lambda node: (-often[node], node))
        yield node, sorted(other for pair in left if node in pair for other in pair - {node})
        left = {pair for pair in left if node not in pair}


def _some(nodes: Sequence[int], hosts: Mapping[int, str]) -> str:
    """`n1, n2` or `7 hosts (n1, n2, ...)`."""
    names = [str(hosts.get(node, f"node {node}")) for node in nodes]
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} hosts ({', '.join(names[:3])}, ...)"


def links(reports: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """Hosts whose usual pair is far below that of other hosts; then single pairs between the others."""
    node_of = {report["rank"]: report["node"] for report in reports}
    machine = {report["rank"]: report.get("machine", report["node"]) for report in reports}
    hosts = {report["node"]: report["host"] for report in reports}
    pairs = {
        (report["rank"], other): max(report["gbytes_per_s"][other], 1e-9)
        for report in reports
        for other in node_of
        if other > report["rank"] and machine[report["rank"]] != machine[other]
    }
    if len(hosts) < 3 or not pairs:
        return  # of two, who is to say which is slow

    own: dict[int, list[float]] = {node: [] for node in hosts}
    for (a, b), rate in pairs.items():
        own[node_of[a]].append(rate)
        own[node_of[b]].append(rate)
    usual: dict[int, float] = {node: statistics.median_high(rates) for node, rates in own.items() if rates}
    bad, middle = _far_below(usual)
    bad = [node for node in bad if max(own[node]) < middle]
    for node in bad:
        reason = f"{usual[node]:.3g} GB/s with most hosts; a host's median is {middle:.3g}"
        yield Finding(node, "links", "fail", reason, "its cable, port or NIC: see ethtool, and the switch's error counters")
    others = {(a, b): rate for (a, b), rate in pairs.items() if not {node_of[a], node_of[b]} & set(bad)}
    slow, middle = _far_below(others) if len(others) > _FEW_PAIRS else ([], 0.0)
    for a, b in slow:
        reason = f"{pairs[a, b]:.3g} GB/s to {hosts[node_of[b]]}, {pairs[a, b] / middle:.0%} of the median pair"
        yield Finding(node_of[a], "links", "warn", reason, "the path between these two: a link between their switches")


def _far_below(rates: Mapping[T, float]) -> tuple[list[T], float]:
    """Those below half of the median and further from it than is usual, slowest first; and the median."""
    if len(rates) < 3:
        return [], 0.0
    middle = statistics.median_high(rates.values())
    spread = statistics.median_low(abs(math.log(rate / middle)) for rate in rates.values())
    far = {key: rate for key, rate in rates.items() if math.log(middle / rate) > max(math.log(2), 4 * spread)}
    return sorted(far, key=lambda key: far[key]), middle
