"""Network cards and RDMA ports."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import TYPE_CHECKING, Any

from launcher.doctor.check import Check
from launcher.doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from launcher.doctor.findings import Status

_WIRES = ("physical", "bond", "ipoib", "vlan", "veth")


def network(facts: Mapping[int, Mapping[str, Any]]) -> Iterable[Finding]:
    """RDMA ports and cards that differ from the same ones elsewhere, and notes of the nodes themselves."""
    yield from _rdma(facts)
    yield from _cards(facts)
    for node, about in facts.items():
        for note in about.get("notes", ()):
            yield Finding(node, "network", "warn", note, "see docs/fabric.md")


def _rdma(facts: Mapping[int, Mapping[str, Any]]) -> Iterable[Finding]:
    """Ports that are down or slower than the same port elsewhere."""
    rates: dict[tuple[str, int], list[float]] = {}
    for about in facts.values():
        for hca in about["hcas"]:
            rates.setdefault((hca["name"], hca["port"]), []).append(_rate(hca))
    for node, about in facts.items():
        ports = Counter(hca["name"] for hca in about["hcas"])
        for hca in about["hcas"]:
            usual = statistics.median_high(rates[hca["name"], hca["port"]])
            if _rate(hca) < usual:
                name = hca["name"] + f":{hca['port']}" * (ports[hca["name"]] > 1)
                reason = f"{name} is {hca['state']} at {_rate(hca):g} Gb/s, elsewhere it has {usual:g}"
                yield Finding(node, "network", "fail", reason, "reseat or replace the cable, look at the switch's port")


def _cards(facts: Mapping[int, Mapping[str, Any]]) -> Iterable[Finding]:
    """Cards that are down but up on most nodes, and MTUs that differ."""
    mtus: dict[str, list[int]] = {}
    for about in facts.values():
        for nic in filter(_carries, about["nics"]):
            mtus.setdefault(nic["name"], []).append(nic["mtu"])
    for node, about in facts.items():
        for nic in about["nics"]:
            up = len(mtus.get(nic["name"], ()))
            usual = statistics.median_high(mtus[nic["name"]]) if up else nic["mtu"]
            if nic["kind"] in _WIRES and not _carries(nic) and up * 2 >= len(facts):
                reason = f"{nic['name']} {'has no address' if nic['up'] else 'is down'}, elsewhere it is up"
                status: Status = "fail" if up * 2 > len(facts) else "warn"
                yield Finding(
                    node, "network", status, reason, f"its cable and switch port; ip -d link show {nic['name']}"
                )
            elif _carries(nic) and nic["mtu"] != usual:
                reason = f"{nic['name']} has MTU {nic['mtu']}, elsewhere {usual}"
                yield Finding(node, "network", "warn", reason, f"ip link set {nic['name']} mtu {usual}")


def _rate(hca: Mapping[str, Any]) -> float:
    return float(hca["rate_gbps"]) if hca["state"] == "ACTIVE" else 0.0


def _carries(nic: Mapping[str, Any]) -> bool:
    return bool(nic["up"] and nic["addresses"] and nic["kind"] in _WIRES)


CHECK = Check(5, lambda told: network(told.facts))
