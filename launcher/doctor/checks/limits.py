"""Limits of memory, files and shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.doctor.check import Check
from launcher.doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_GIB = 1 << 30


def limits(facts: Mapping[int, Mapping[str, Any]]) -> Iterable[Finding]:
    """Too little locked memory for RDMA, too few open files, a /dev/shm of the default container size."""
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
            yield Finding(
                node, "limits", "warn", f"shared memory (/dev/shm) of {has['shm_bytes'] / 2**20:.0f} MiB", fix
            )


CHECK = Check(4, lambda told: limits(told.facts))
