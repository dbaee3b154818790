"""What was sent, kept in the run's directory to send it again: the objects of a deleted run are in no cluster."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from launcher.agent.job import Job
from launcher.agent.roles import IGNORE
from launcher.backends._base import master_text
from launcher.backends._plan import PlannedNode
from launcher.backends.kubernetes import about, granted, kubeconfig
from launcher.backends.kubernetes.plan import KubernetesPlan
from launcher.backends.kubernetes.pod import RUN_LABEL, key_name
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
_NAMED_BY = {"configMap", "secret", "secretKeyRef"}
"""Fields of a pod that name a ConfigMap or a Secret."""


class Kept(TypedDict):
    """What another attempt needs; values of secrets are not in it."""

    objects: list[Manifest]
    secrets: list[str]
    """Names of variables."""

    function: str | None
    notify: str | None
    """Whom to tell; missing in what an earlier version has kept."""


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
    if roles := plan.job.roles:
        ignored = [each["name"] for each in roles if each["on_failure"] == IGNORE]
        counts = {each["name"]: each["nodes"] for each in roles}
        handle.update({"roles": counts, "ignored": ignored, "grace_s": plan.job.grace_s})
    return {**handle, "output_dir": plan.job.cwd} if opts.output_dir else handle


def keep(plan: KubernetesPlan) -> None:
    """Write what is about to be sent."""
    write(plan.run_dir, {
        "objects": [*plan.objects], "secrets": [*plan.secrets],
        "function": plan.job.function, "notify": plan.job.notify,
    })  # fmt: skip


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
    """The plan of another attempt: the same objects, whose agents know its number and why there is one.

    What its pods mount has a name of its own: a kubelet may have the former attempt's content under the old one.
    """
    former = about.inputs_of(handle["name"], about.attempt_of(about.owner_of(kept["objects"])))
    inputs = about.inputs_of(handle["name"], note)
    made = _renamed(_apart(kept["objects"]), former, inputs)
    again: dict[str, Any] = {"attempt": attempt, "why_again": why}
    if granted.is_noted(Path(handle["run_dir"])):
        again["claim"] = None
    spec: dict[str, Any] = {}
    for item in made:
        item["metadata"].setdefault("annotations", {})[about.ATTEMPT] = note
        if _SPEC in (item.get("data") or {}):
            spec = {**json.loads(item["data"][_SPEC]), **again}
            item["data"][_SPEC] = json.dumps(spec, indent=1) + "\n"
    job = Job(**spec)._replace(function=kept["function"], notify=kept.get("notify"))
    rows = (PlannedNode(node_rank=rank, host="", workers=None) for rank in range(handle["nodes"]))
    return KubernetesPlan(
        run_dir=Path(handle["run_dir"]), name=handle["name"], objects=tuple(made), job=job, nodes=tuple(rows),
        secrets=tuple(kept["secrets"]), python=handle["python"], snapshot=None,
        master=master_text(job.rendezvous["addr"], job.master_port), inputs=inputs,
    )  # fmt: skip


def _apart(made: list[Manifest]) -> list[Manifest]:
    """The objects, of which the owner is none that pods mount: the ConfigMap of bare pods gives its content away."""
    owner = about.owner_of(made)
    if owner["kind"] != "ConfigMap" or "data" not in owner:
        return made
    notes = owner["metadata"].get("annotations") or {}
    meta = {**owner["metadata"], "annotations": {key: notes[key] for key in notes if not key.startswith("distlaunch/")}}
    empty = {key: value for key, value in owner.items() if key not in ("data", "binaryData")}
    return [empty, {**owner, "metadata": meta}, *made[1:]]


def _renamed(made: list[Manifest], former: str, inputs: str) -> list[Manifest]:
    """The objects with other names of ConfigMaps and Secrets, wherever pods name them."""
    owner = about.owner_of(made)
    maps = [item["metadata"]["name"] for item in made if item["kind"] == "ConfigMap" and item is not owner]
    names = {name: inputs + name[len(former) :] for name in maps if name == former or name.startswith(f"{former}-")}
    names |= {former: inputs, key_name(former): key_name(inputs)}

    def rename(found: Any) -> Any:
        if isinstance(found, list):
            return [rename(each) for each in found]
        if not isinstance(found, dict):
            return found
        new = {key: rename(value) for key, value in found.items()}
        for key in _NAMED_BY & new.keys():
            if isinstance(new[key], dict) and new[key].get("name") in names:
                new[key]["name"] = names[new[key]["name"]]
        return new

    found = [
        {**item, "metadata": {**item["metadata"]}} if item["kind"] == "ConfigMap" else rename(item) for item in made
    ]
    for item in found:
        meta = item["metadata"]
        if item["kind"] == "ConfigMap" and item is not about.owner_of(found):
            meta["name"] = names.get(meta["name"], meta["name"])
    return found


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
