"""Python, torch, CUDA, NCCL, driver and GPU: the same on all nodes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from launcher.doctor.check import Check
from launcher.doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from launcher.doctor.findings import Status


def versions(first: Sequence[Mapping[str, Any]], facts: Mapping[int, Mapping[str, Any]]) -> Iterable[Finding]:
    """Versions that differ from those of most nodes."""
    of: dict[int, dict[str, str]] = {report["node"]: dict(report["versions"]) for report in first}
    for node, about in facts.items():
        drivers = {gpu["driver"] for gpu in about["gpus"] if gpu["driver"]}
        of.setdefault(node, {})["driver"] = ", ".join(sorted(drivers))
    for what in ("python", "torch", "cuda", "nccl", "driver", "gpu"):
        have = {node: about[what] for node, about in of.items() if what in about}
        common = Counter(have.values()).most_common(1)[0][0] if have else ""
        for node, value in have.items():
            if value != common:
                status: Status = "warn" if what in ("python", "driver", "gpu") else "fail"
                reason = f"{what} {value or 'missing'}, where most nodes have {common or 'none'}"
                yield Finding(node, "versions", status, reason, f"install {what} {common} there, or exclude the node")


CHECK = Check(1, lambda told: versions(told.first, told.facts), needs="versions")
