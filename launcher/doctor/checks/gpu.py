"""GPUs and their links."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from launcher.doctor.check import Check
from launcher.doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def gpus(facts: Mapping[int, Mapping[str, Any]]) -> Iterable[Finding]:
    """Fewer GPUs than elsewhere, errors, PCIe links narrower than possible, missing NVLinks."""
    usual = max(statistics.multimode(len(about["gpus"]) for about in facts.values()), default=0)
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
                yield Finding(node, "gpu", "fail", reason, "drain the node and reset the GPU; replace it if they recur")
            width = gpu["pcie"].rpartition("x")[2].split(" of ")
            if len(width) == 2 and all(map(str.isdigit, width)) and int(width[0]) < int(width[1]):
                reason = f"GPU {gpu['index']}: PCIe x{width[0]} of {width[1]}"
                yield Finding(node, "gpu", "warn", reason, "reseat the card or its riser")
            by_nvlink = {link.startswith("NV") for link in gpu["links"].values()}
            if len(by_nvlink) > 1:
                reason = f"GPU {gpu['index']}: no NVLink to some GPUs"
                yield Finding(node, "gpu", "warn", reason, "nvidia-smi nvlink -s; restart nvidia-fabricmanager")


CHECK = Check(8, lambda told: gpus(told.facts))
