"""What was sent, kept in the run's directory to send it again: the objects of a deleted run are in no cluster."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from launcher.agent.job import Job
from launcher.backends._base import PlannedNode, master_text
from launcher.backends.kubernetes import about, kubeconfig
from launcher.backends.kubernetes.plan import KubernetesPlan
from launcher.backends.kubernetes.pod import RUN_LABEL
from launcher.errors import StorageError
from launcher.runs import lock
from launcher.system import storage

if TYPE_CHECKING:
    from launcher.backends.kubernetes.api import Cluster
    from launcher.backends.kubernetes.handle import KubernetesHandle
    from launcher.backends.kubernetes.objects import Manifest
    from launcher.backends.kubernetes.options import KubernetesOptions
    from launcher.backends.kubernetes.pod_status import Object

_SPEC = "spec.json"


class Kept(TypedDict):
    """What another attempt needs; values of secrets are not in it."""

    objects: list[Manifest]
    secrets: list[str]
    """Names of variables."""

    function: str | None


def handle_of(
    cluster: Cluster, opts: KubernetesOptions, run_dir: Path, name: str, *, nodes: tuple[int, int], python: str
) -> KubernetesHandle:
    """The handle of a run of the kind in `opts`; `nodes`: at least and at most."""
    made: KubernetesHandle = {
        "run_dir": str(run_dir),
        "run": run_dir.name,
        "name": name,
        "job_id": name,
        "kind": opts.kind,
        "namespace": cluster.namespace,
        "context": cluster.context,
        "kubeconfig": os.pathsep.join(kubeconfig.find(opts.kubeconfig)),
        "nodes": nodes[1],
        "min_nodes": nodes[0],
        "python": python,
    }
    if cluster.tunnel:
        login = cluster.tunnel.login
        made.update({"login": login.address, "cluster": login.cluster})
    return made


def planned(plan: KubernetesPlan, opts: KubernetesOptions, cluster: Cluster) -> KubernetesHandle:
    """The handle of a run that is about to be submitted."""
    nodes = (plan.job.min_nodes, len(plan.nodes))
    handle = handle_of(cluster, opts, plan.run_dir, plan.name, nodes=nodes, python=plan.python)
    return {**handle, "output_dir": plan.job.cwd} if opts.output_dir else handle


def keep(plan: KubernetesPlan) -> None:
    """Write what is about to be sent."""
    write(plan.run_dir, {"objects": [*plan.objects], "secrets": [*plan.secrets], "function": plan.job.function})


def write(run_dir: Path, kept: Kept) -> None:
    """Write it for its owner only."""
    storage.write_whole(_path(run_dir), gzip.compress(json.dumps(kept).encode("ascii"), 6), mode=0o600)


def read(run_dir: Path) -> Kept | None:
    """What was sent; None if it was not sent from here. Raises `StorageError`."""
    path = _path(run_dir)
    if not path.exists():
        return None
    try:
        found: Kept = json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, ValueError) as error:
        raise StorageError(f"{path} cannot be read: {error}", hint="launch the run again") from error
    return found


def plan_of(kept: Kept, handle: KubernetesHandle, attempt: int, note: str, why: str) -> KubernetesPlan:
    """The plan of another attempt: the same objects, whose agents know its number and why there is one."""
    made = kept["objects"]
    spec: dict[str, Any] = {}
    for item in made:
        item["metadata"].setdefault("annotations", {})[about.ATTEMPT] = note
        if _SPEC in (item.get("data") or {}):
            spec = {**json.loads(item["data"][_SPEC]), "attempt": attempt, "why_again": why}
            item["data"][_SPEC] = json.dumps(spec, indent=1) + "\n"
    job = Job(**spec)._replace(function=kept["function"])
    rows = (PlannedNode(node_rank=rank, host="", workers=None) for rank in range(handle["nodes"]))
    return KubernetesPlan(
        run_dir=Path(handle["run_dir"]), name=handle["name"], objects=tuple(made), job=job, nodes=tuple(rows),
        secrets=tuple(kept["secrets"]), python=handle["python"], snapshot=None,
        master=master_text(job.rendezvous["addr"], job.master_port),
    )  # fmt: skip


def current(owner: Object | None, handle: KubernetesHandle) -> tuple[Object | None, bool]:
    """The owner, if it is the run's, of this attempt or a later one; and whether there is none and will be none."""
    meta = (owner or {}).get("metadata") or {}
    later = owner is not None and about.attempt_of(owner) and meta.get("labels", {}).get(RUN_LABEL) == handle["run"]
    if (meta.get("uid") == handle["uid"] or later) and "deletionTimestamp" not in meta:
        return owner, False
    holder = lock.owner(Path(handle["run_dir"]))
    return None, holder is None or holder.doing != "requeue" or holder.seems_gone


def given_up(handle: KubernetesHandle) -> Path:
    """The file that says why one of our commands has ended this attempt: a failure's class and message."""
    return Path(handle["run_dir"], f"given_up-{handle['uid']}.json")


def _path(run_dir: Path) -> Path:
    return run_dir / "objects.json.gz"
