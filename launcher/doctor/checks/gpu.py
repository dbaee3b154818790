"""GPUs and their links."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import TYPE_CHECKING, Any

from launcher.doctor.check import Check
from launcher.doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_OF_APPLICATIONS = frozenset({13, 31, 43, 45, 68, 69})
"""Xid numbers that programs cause as a rule, by NVIDIA's catalogue: as by an access outside of their memory."""


def gpus(facts: Mapping[int, Mapping[str, Any]]) -> Iterable[Finding]:
    """Fewer GPUs than elsewhere, errors, PCIe links narrower than possible, missing NVLinks."""
    usual = max(statistics.multimode(len(about["gpus"]) for about in facts.values()), default=0)
    nvlinks = _usual_nvlinks(facts)
    for node, about in facts.items():
        if len(about["gpus"]) < usual:
            reason = f"{len(about['gpus'])} GPUs, elsewhere {usual}"
            yield Finding(node, "gpu", "fail", reason, "see dmesg for Xid errors; reboot the node")
        for gpu in about["gpus"]:
            if gpu["xid"]:
                yield _xid(node, gpu)
            if gpu["ecc_uncorrected"]:
                reason = f"GPU {gpu['index']}: {gpu['ecc_uncorrected']} uncorrected ECC errors"
                yield Finding(node, "gpu", "fail", reason, "drain the node and reset the GPU; replace it if they recur")
            width = gpu["pcie"].rpartition("x")[2].split(" of ")
            if len(width) == 2 and all(map(str.isdigit, width)) and int(width[0]) < int(width[1]):
                reason = f"GPU {gpu['index']}: PCIe x{width[0]} of {width[1]}"
                yield Finding(node, "gpu", "warn", reason, "reseat the card or its riser")
            if _nvlinks(gpu) < nvlinks[len(about["gpus"]), gpu["index"]]:
                reason = f"GPU {gpu['index']}: no NVLink to some GPUs"
                yield Finding(node, "gpu", "warn", reason, "nvidia-smi nvlink -s; restart nvidia-fabricmanager")


def _xid(node: int, gpu: Mapping[str, Any]) -> Finding:
    numbers = sorted(set(gpu["xid"]))
    reason = f"GPU {gpu['index']}: Xid {', '.join(map(str, numbers))}"
    if _OF_APPLICATIONS.issuperset(numbers):
        fix = "see NVIDIA's Xid catalogue, and what ran there; suspect the GPU if others do not show it"
        return Finding(node, "gpu", "warn", f"{reason}, as a rule an application's error", fix)
    return Finding(node, "gpu", "fail", reason, "see NVIDIA's Xid catalogue; reset or replace it")


def _usual_nvlinks(facts: Mapping[int, Mapping[str, Any]]) -> dict[tuple[int, int], int]:
    """To how many GPUs most nodes with that many GPUs have an NVLink from that one. A lone node's GPUs are alike."""
    found: dict[tuple[int, int], list[int]] = {}
    nodes = Counter(len(about["gpus"]) for about in facts.values())
    for about in facts.values():
        of_all = [_nvlinks(gpu) for gpu in about["gpus"]]
        for gpu, own in zip(about["gpus"], of_all, strict=True):
            found.setdefault((len(of_all), gpu["index"]), []).extend([own] if nodes[len(of_all)] > 1 else of_all)
    return {key: max(statistics.multimode(counts)) for key, counts in found.items()}


def _nvlinks(gpu: Mapping[str, Any]) -> int:
    return sum(link.startswith("NV") for link in gpu["links"].values())


CHECK = Check(8, lambda told: gpus(told.facts))
