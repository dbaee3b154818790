"""A run that another user, another host or kubectl started: found in the namespace, and made a run of this host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.backends.kubernetes import about, kept, owners, words
from launcher.backends.kubernetes.pod import STARTS_AGAIN
from launcher.errors import RequestError, RunNotFoundError
from launcher.runs import directories, records
from launcher.system.dataclass import asdict, replace

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.backends.kubernetes.about import About, RoleAbout
    from launcher.backends.kubernetes.api import Cluster
    from launcher.backends.kubernetes.handle import KubernetesHandle
    from launcher.backends.kubernetes.options import KubernetesOptions
    from launcher.backends.kubernetes.owners import Owner

_NAME = "k8s"
_SHOWN = 5


def adopt(cluster: Cluster, opts: KubernetesOptions, text: str, runs_root: Path) -> records.Run:
    """Add the run with this id, the unique start of one, or this name of its objects, to the runs in `runs_root`."""
    owner, told = _look(cluster, text)
    path = runs_root / owner.run
    if path.exists():
        raise RequestError(f"{owner.run} is already known here", hint=f"distlaunch status {owner.run}")
    made = records.Run(
        id=owner.run,
        path=path,
        created=owner.created,
        backend=_NAME,
        options=asdict(replace(opts, kind=owner.kind)),
        command=tuple(told["command"]),
        cwd=told["cwd"],
        nodes=str(told["nodes"]) if told["min_nodes"] == told["nodes"] else f"{told['min_nodes']}:{told['nodes']}",
        workers=str(told["workers"]),
        plan={
            "nodes": _nodes(told),
            "min_nodes": _least(told),
            "grace_s": told["grace_s"],
            "has_queue": True,
            "may_start_again": owner.kind in STARTS_AGAIN,
        },
        handle=_handle(cluster, opts, owner, told, path),
        attempt=about.number_of(owner.item),
    )
    records.create(made)
    return made


def _nodes(told: About) -> list[dict[str, Any]]:
    """The nodes, as the plan of its launcher has them."""
    whole: RoleAbout = {"name": "", "nodes": told["nodes"], "workers": told["workers"], "ignored": False}
    of_nodes = [role for role in told.get("roles") or [whole] for _ in range(role["nodes"])]
    return [
        {"node_rank": rank, "host": "Kubernetes' choice", "workers": role["workers"], "role": role["name"]}
        for rank, role in enumerate(of_nodes)
    ]


def _least(told: About) -> int:
    """How many nodes have to succeed."""
    return max(1, told["min_nodes"] - sum(role["nodes"] for role in told.get("roles", ()) if role["ignored"]))


def _handle(cluster: Cluster, opts: KubernetesOptions, owner: Owner, told: About, path: Path) -> KubernetesHandle:
    """The handle that the launcher which started the run would have."""
    opts, nodes = replace(opts, kind=owner.kind), (told["min_nodes"], told["nodes"])
    made = kept.handle_of(cluster, opts, path, owner.name, nodes=nodes, python=told["python"])
    found: KubernetesHandle = {**made, "uid": owner.uid}
    if roles := told.get("roles"):
        counts = {role["name"]: role["nodes"] for role in roles}
        ignored = [role["name"] for role in roles if role["ignored"]]
        found.update({"roles": counts, "ignored": ignored, "grace_s": told["grace_s"]})
    return {**found, "attempt": attempt} if (attempt := about.attempt_of(owner.item)) else found


def _look(cluster: Cluster, text: str) -> tuple[Owner, About]:
    """The owner of the run, and what it says about it. Raises `LaunchError` unless there is one, and that is usable."""
    found = owners.found(cluster)
    text = text.removeprefix(f"{_NAME}:")
    exact = [owner for owner in found if text in (owner.run, owner.name)]
    matching = exact or [owner for owner in found if text and owner.run.startswith(text)]
    where = f"in namespace {cluster.namespace!r}"
    if len(matching) != 1:
        known = ", ".join(owner.run for owner in (matching or found)[-_SHOWN:])
        what = f"{text!r} matches {len(matching)} runs" if matching else f"no run {text!r}"
        raise RunNotFoundError(f"{what} {where}", hint=f"there: {known}" if known else None)
    (owner,) = matching
    if not directories.is_id(owner.run):
        raise RequestError(f"{owner.kind} {owner.name} {where} is labelled {owner.run!r}, which is not a run's id")
    words.dns_name(owner.name, "name")
    if owner.about is None:
        why = f"is wrong: {owner.wrong}" if owner.wrong else "is missing, as on runs of earlier versions"
        raise RequestError(
            f"{owner.run} {where} cannot be adopted: its annotation {about.NOTE} {why}",
            hint="use it where it was started, or kubectl",
        )
    return owner, owner.about
