"""What the nodes' reports and facts say when they are compared with one another. Pure: asks nobody."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import TYPE_CHECKING, Any

from launcher.agent.failures import Failure
from launcher.doctor.examine_links import links, mtus, ports
from launcher.doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from launcher.doctor.findings import Status

_GIB = 1 << 30
_PARTS = 8
"""In so many parts, at most, the other nodes are left out one after the other: comparing thousands takes a while."""


def examine(reports: Sequence[Mapping[str, Any]], facts: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
    """Everything that stands out. `reports` are one per rank, `facts` of each node what its agent read (`docs/fabric.md`)."""
    first = [report for report in reports if report["local_rank"] == 0]
    found = [*versions(first, facts), *clocks(first), *disks(first), *limits(facts), *network(facts), *gpus(facts)]
    found += [*ports(first), *mtus(first)]
    measured = [report for report in reports if "gemm_tflops" in report]
    return [*found, *speed(measured), *(links(reports) if all("gbytes_per_s" in report for report in reports) else ())]


def lasting(reports: Sequence[Mapping[str, Any]], facts: Mapping[int, Mapping[str, Any]]) -> set[tuple[int, str]]:
    """Nodes and checks that have failed by more than one other node's word: whichever part of the others is left out."""

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
    """Why the nodes did not even meet, where it was the network: node 0 has the port that all others look for."""
    if cause and cause.get("class") in (Failure.FABRIC, Failure.COLLECTIVE):
        fix = "let TCP 10000-65535 through to this host; --master-port and a rule for one port are not enough for gloo and NCCL"
        yield Finding(0, "ports", "fail", f"the others cannot reach it: {cause.get('message')}", fix)


def versions(first: Sequence[Mapping[str, Any]], facts: Mapping[int, Mapping[str, Any]]) -> Iterable[Finding]:
    """Those that differ from what most nodes have."""
    of: dict[int, dict[str, str]] = {report["node"]: dict(report["versions"]) for report in first}
    for node, about in facts.items():
        drivers = {gpu["driver"] for gpu in about["gpus"] if gpu["driver"]}
        of.setdefault(node, {})["driver"] = ", ".join(sorted(drivers))
    for what in ("python", "torch", "cuda", "nccl", "driver", "gpu"):
        have = {node: about.get(what, "") for node, about in of.items()}
        common = Counter(have.values()).most_common(1)[0][0] if have else ""
        for node, value in have.items():
            if value != common:
                status: Status = "warn" if what in ("python", "driver", "gpu") else "fail"
                reason = f"{what} {value or 'missing'}, where most nodes have {common or 'none'}"
                yield Finding(node, "versions", status, reason, f"install {what} {common} there, or leave the node out")


def clocks(first: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """More than a second from the median clock; beyond a minute certificates and rendezvous deadlines fail."""
    asked = [report for report in first if "clock_offset_s" in report]
    middle = statistics.median([report["clock_offset_s"] for report in asked] or [0.0])
    for report in asked:
        off = report["clock_offset_s"] - middle
        if abs(off) > 1:
            reason = f"clock {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} the others"
            status: Status = "fail" if abs(off) > 60 else "warn"
            yield Finding(report["node"], "clock", status, reason, "start chrony or systemd-timesyncd there")


def disks(first: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """Not writable, or nearly full."""
    for report in first:
        for path, about in report["disks"].items():
            if about["error"]:
                fix = f"free space in {path}, or see whose it is"
                yield Finding(report["node"], "disk", "fail", f"{path}: {about['error']}", fix)
            elif about["free"] < min(_GIB, about["total"] / 20):
                reason = f"{path}: {about['free'] / 2**20:.0f} MiB of {about['total'] / 2**20:.0f} are free"
                yield Finding(report["node"], "disk", "warn", reason, f"free space in {path}")


def limits(facts: Mapping[int, Mapping[str, Any]]) -> Iterable[Finding]:
    """Too little locked memory for RDMA, too few open files, a /dev/shm as containers have it by default."""
    for node, about in facts.items():
        has = about["limits"]
        memlock, rdma = has["memlock_bytes"], any(hca["state"] == "ACTIVE" for hca in about["hcas"])
        if memlock is not None and memlock < _GIB and rdma:
            fix = "LimitMEMLOCK=infinity for the service that starts jobs, or ulimit -l unlimited"
            yield Finding(node, "limits", "fail", f"locked memory {memlock // 1024} KiB with RDMA devices", fix)
        elif memlock is not None and memlock < 1 << 20:
            yield Finding(node, "limits", "warn", f"locked memory {memlock // 1024} KiB", "ulimit -l unlimited")
        if has["open_files"] is not None and has["open_files"] < 4096:
            yield Finding(node, "limits", "warn", f"at most {has['open_files']} open files", "ulimit -n 65536")
        if has["shm_bytes"] is not None and has["shm_bytes"] < _GIB:
            fix = "start the container with --shm-size 16g or --ipc host"
            yield Finding(node, "limits", "warn", f"shared memory (/dev/shm) of {has['shm_bytes'] / 2**20:.0f} MiB", fix)


def network(facts: Mapping[int, Mapping[str, Any]]) -> Iterable[Finding]:
    """RDMA ports and cards that differ from the same elsewhere; notes of the nodes themselves."""
    yield from _rdma(facts)
    yield from _cards(facts)
    for node, about in facts.items():
        for note in about.get("notes", ()):
            yield Finding(node, "network", "warn", note, "see docs/fabric.md")


def _rdma(facts: Mapping[int, Mapping[str, Any]]) -> Iterable[Finding]:
    """Ports that are down or slow where the same port elsewhere is not."""
    rates: dict[str, list[float]] = {}
    for about in facts.values():
        for hca in about["hcas"]:
            rates.setdefault(hca["name"], []).append(_rate(hca))
    for node, about in facts.items():
        for hca in about["hcas"]:
            usual = statistics.median_high(rates[hca["name"]])
            if _rate(hca) < usual:
                reason = f"{hca['name']} is {hca['state']} at {_rate(hca):g} Gb/s, elsewhere it has {usual:g}"
                yield Finding(node, "network", "fail", reason, "reseat or replace the cable, look at the switch's port")


def _cards(facts: Mapping[int, Mapping[str, Any]]) -> Iterable[Finding]:
    """Cards that are down where most have them up; MTUs that differ."""
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
                yield Finding(node, "network", status, reason, f"its cable and switch port; ip -d link show {nic['name']}")
            elif _carries(nic) and nic["mtu"] != usual:
                reason = f"{nic['name']} has MTU {nic['mtu']}, elsewhere {usual}"
                yield Finding(node, "network", "warn", reason, f"ip link set {nic['name']} mtu {usual}")


def _rate(hca: Mapping[str, Any]) -> float:
    return float(hca["rate_gbps"]) if hca["state"] == "ACTIVE" else 0.0


_WIRES = ("physical", "bond", "ipoib", "vlan", "veth")


def _carries(nic: Mapping[str, Any]) -> bool:
    return bool(nic["up"] and nic["addresses"] and nic["kind"] in _WIRES)


def gpus(facts: Mapping[int, Mapping[str, Any]]) -> Iterable[Finding]:
    """Fewer than elsewhere, errors, a PCIe link that is narrower than it could be, missing NVLinks."""
    usual = statistics.mode([len(about["gpus"]) for about in facts.values()]) if facts else 0
    for node, about in facts.items():
        if len(about["gpus"]) < usual:
            reason = f"{len(about['gpus'])} GPUs, elsewhere {usual}"
            yield Finding(node, "gpu", "fail", reason, "see dmesg for Xid errors; reboot the node")
        for gpu in about["gpus"]:
            if gpu["xid"]:
                numbers = ", ".join(map(str, sorted(set(gpu["xid"]))))
                reason = f"GPU {gpu['index']}: Xid {numbers}"
                yield Finding(node, "gpu", "fail", reason, "see NVIDIA's Xid catalogue; reset or replace it")
            if gpu["ecc_uncorrected"]:
                reason = f"GPU {gpu['index']}: {gpu['ecc_uncorrected']} uncorrected ECC errors"
                yield Finding(node, "gpu", "fail", reason, "drain the node and reset the GPU; replace it when they come again")
            width = gpu["pcie"].rpartition("x")[2].split(" of ")
            if len(width) == 2 and all(map(str.isdigit, width)) and int(width[0]) < int(width[1]):
                reason = f"GPU {gpu['index']}: PCIe x{width[0]} of {width[1]}"
                yield Finding(node, "gpu", "warn", reason, "reseat the card or its riser")
            by_nvlink = {link.startswith("NV") for link in gpu["links"].values()}
            if len(by_nvlink) > 1:
                reason = f"GPU {gpu['index']}: no NVLink to some GPUs"
                yield Finding(node, "gpu", "warn", reason, "nvidia-smi nvlink -s; restart nvidia-fabricmanager")


def speed(reports: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """Arithmetic far below the median of all ranks."""
    if len(reports) < 3:
        return  # two that differ: who is to say which is wrong
    rates = [report["gemm_tflops"] for report in reports]
    middle = statistics.median(rates)
    deviation = statistics.median(abs(rate - middle) for rate in rates)
    for report in reports:
        part = report["gemm_tflops"] / middle
        if part < 0.8 and middle - report["gemm_tflops"] > 4 * deviation:
            reason = (
                f"rank {report['rank']} (local {report['local_rank']}): {report['gemm_tflops']:.3g} TFLOP/s, "
                f"{part:.0%} of the median {middle:.3g} (deviation {deviation:.2g})"
            )
            status: Status = "fail" if part < 0.5 else "warn"
            yield Finding(report["node"], "speed", status, reason, "look at clocks, power cap, temperature, other jobs")
