"""Thousands of nodes that only simulate pods (kwok), to measure scaling."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from testbed import kube_programs
from testbed.kube_builds import KWOK
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from testbed.kube_api import KubeApi, Object
    from testbed.kube_conf import KubeFiles, KubeOptions

MARK = "kwok.x-k8s.io/node"
LABEL = "type=kwok"
TAINT = "simulated"
CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
THREADS = 8


def kwok(options: KubeOptions, files: KubeFiles) -> dict[str, str]:
    """kwok's flags; its stages are written to a file: pods run until they are deleted."""
    config = files.directory / "kwok.yaml"
    config.write_text("\n---\n".join(path.read_text() for path in _stages(kube_programs.directory(KWOK))))
    return {
        "kubeconfig": str(files.kubeconfig),
        "config": str(config),
        "manage-all-nodes": "false",
        "manage-nodes-with-annotation-selector": f"{MARK}=fake",
        "node-lease-duration-seconds": str(max(4, options.lost_after_s * 3 // 4)),
        "cidr": "10.245.0.0/16",
    }


def _stages(directory: Path) -> list[Path]:
    """kwok's stages of nodes and pods, without the one that completes a Job's pods at once."""
    names = ("node/fast/node-initialize", "node/heartbeat-with-lease/node-heartbeat-with-lease", "pod/fast/pod-ready")
    return [directory / "kustomize/stage" / f"{name}.yaml" for name in (*names, "pod/fast/pod-delete")]


def add(connect: Callable[[], KubeApi], numbers: Iterable[int], *, tainted: bool, limit_s: float = 120) -> None:
    """Create nodes, and wait until all are Ready."""
    wanted = list(numbers)

    def make(part: list[int]) -> None:
        api = connect()
        for number in part:
            api.post("/api/v1/nodes", node(number, tainted=tainted))
        api.close()

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(make, [wanted[start::THREADS] for start in range(THREADS)]))
    api = connect()
    names = {f"sim-{number}" for number in wanted}

    def all_ready() -> bool:
        return names <= {item["metadata"]["name"] for item in api.get("/api/v1/nodes")["items"] if is_ready(item)}

    wait_until(f"{len(wanted)} simulated nodes to be Ready", all_ready, limit_s=limit_s, every_s=0.5)
    api.close()


def node(number: int, *, tainted: bool) -> Object:
    """One node as kwok expects it; Ready from the start, which saves a write of each."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    labels = {"kubernetes.io/hostname": f"sim-{number}", "kubernetes.io/os": "linux", "type": "kwok"}
    spec: dict[str, Any] = {"taints": [{"key": TAINT, "effect": "NoSchedule"}]} if tainted else {}
    return {
        "metadata": {"name": f"sim-{number}", "labels": labels, "annotations": {MARK: "fake"}},
        "spec": spec,
        "status": {"capacity": CAPACITY, "allocatable": CAPACITY, "conditions": [ready], "phase": "Running"},
    }


def is_ready(item: Object) -> bool:
    """Whether a node accepts pods: Ready, and without its initial taint."""
    ready = any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in item["status"].get("conditions", ())
    )
    return ready and all(taint["key"] == TAINT for taint in item["spec"].get("taints", ()))
