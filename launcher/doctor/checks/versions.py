"""Python, torch, CUDA, NCCL, driver and GPU: the same on all nodes."""

from __future__ import annotations

from statistics import multimode
from typing import TYPE_CHECKING, Any

from launcher.doctor.check import Check
from launcher.doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from launcher.doctor.findings import Status


def versions(first: Sequence[Mapping[str, Any]], facts: Mapping[int, Mapping[str, Any]]) -> Iterable[Finding]:
    """Versions that differ from those of most nodes; if as many have another, on all of them."""
    of: dict[int, dict[str, str]] = {report["node"]: dict(report["versions"]) for report in first}
    for node, about in facts.items():
        drivers = {gpu["driver"] for gpu in about["gpus"] if gpu["driver"]}
        of.setdefault(node, {})["driver"] = ", ".join(sorted(drivers))
    for what in ("python", "torch", "cuda", "nccl", "driver", "gpu"):
        have = {node: about[what] for node, about in of.items() if what in about}
        common = multimode(have.values())
        who = "most nodes" if len(common) == 1 else "other nodes"
        for node, value in have.items():
            others = " or ".join(each or "none" for each in common if each != value)
            if others:
                status: Status = "warn" if what in ("python", "driver", "gpu") else "fail"
                reason = f"{what} {value or 'missing'}, where {who} have {others}"
                yield Finding(node, "versions", status, reason, f"install {what} {others} there, or exclude the node")


CHECK = Check(1, lambda told: versions(told.first, told.facts), needs="versions")
