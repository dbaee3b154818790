"""What another attempt sends: nothing that its pods mount has a name of the former attempt's."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from launcher.backends.kubernetes import about, kept, submission
from launcher.backends.kubernetes.backend import KubernetesBackend
from launcher.backends.kubernetes.options import KINDS, KubernetesOptions
from launcher.spec import JobSpec, NodeRange

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.backends.kubernetes.plan import KubernetesPlan


def planned(kind: str, directory: Path) -> tuple[KubernetesOptions, KubernetesPlan]:
    """A run of two nodes, with a secret and files that need several ConfigMaps."""
    (directory / "x.py").write_text("print()\n")
    (directory / "large").write_bytes(os.urandom(300_000))
    opts = KubernetesOptions(image="IMAGE", kind=kind, annotation=("team=vision",))
    spec = JobSpec(
        command=("x.py",), nodes=NodeRange(min=2, max=2), cwd=str(directory), secrets=("TOKEN",), name="x", env={}
    )
    run_dir = directory / "runs" / "x-20260101-000000-abcd"
    return opts, KubernetesBackend(opts).plan(spec, run_dir)


def test_an_attempt_creates_the_secret_that_its_pods_mount_for_receivers_who_are_not_known(tmp_path: Path) -> None:
    """The cluster does not give away whom `--notify` names."""
    opts = KubernetesOptions(image="IMAGE", workdir="/app")
    spec = JobSpec(command=("x.py",), cwd=str(tmp_path), name="x", env={}, agents={"notify": '{"urls": []}'})
    first = KubernetesBackend(opts).plan(spec, tmp_path / "runs" / "x-20260101-000000-abcd")
    handle: Any = {"name": first.name, "run_dir": str(first.run_dir), "nodes": 1, "python": "python3"}
    sent: Any = json.loads(json.dumps({"objects": first.objects, "secrets": [], "function": None, "notify": None}))

    plan = kept.plan_of(sent, handle, 1, "1-aaaaaaaa", "failed")

    made = [*plan.objects, *submission.secrets(opts, plan)]
    assert mounted(list(plan.objects)) <= {item["metadata"]["name"] for item in made}


def mounted(found: Any) -> set[str]:
    """The names of the ConfigMaps and Secrets that pods name."""
    if isinstance(found, list):
        return set().union(*map(mounted, found))
    if not isinstance(found, dict):
        return set()
    own = {found[key]["name"] for key in ("configMap", "secret", "secretKeyRef") if "name" in (found.get(key) or {})}
    return own.union(*map(mounted, found.values()))


@pytest.mark.parametrize("kind", KINDS)
def test_pods_of_another_attempt_mount_nothing_of_the_former_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet, or the cache of the API server, may still have the former content of a name."""
    monkeypatch.setenv("TOKEN", "secret")
    opts, first = planned(kind, tmp_path)
    handle: Any = {"name": first.name, "run_dir": str(first.run_dir), "nodes": 2, "python": "python3"}
    plans = [first]
    for attempt, note in ((1, "1-aaaaaaaa"), (2, "2-bbbbbbbb")):
        sent = json.loads(json.dumps({"objects": plans[-1].objects, "secrets": ["TOKEN"], "function": None}))
        plans.append(kept.plan_of(sent, handle, attempt, note, "failed"))
    from_first = kept.plan_of(
        json.loads(json.dumps({"objects": first.objects, "secrets": ["TOKEN"], "function": None})),
        handle, 2, "2-bbbbbbbb", "failed",
    )  # fmt: skip
    assert from_first.objects == plans[2].objects, "whether the former attempt was launched here or read back"

    seen: set[str] = set()
    for number, plan in enumerate(plans):
        owner = about.owner_of(plan.objects)
        assert (owner["metadata"]["name"], about.number_of(owner), plan.job.attempt) == (first.name, number, number)
        assert owner["metadata"]["annotations"]["team"] == "vision"
        made = {item["metadata"]["name"]: item for item in plan.objects if item["kind"] == "ConfigMap"}
        made |= {item["metadata"]["name"]: item for item in submission.secrets(opts, plan)}
        names = mounted(list(plan.objects))
        assert len(names) >= 4, "the spec, files, the key, the secret"
        assert names <= made.keys(), "each is created"
        assert all(made[name]["immutable"] for name in names)
        assert not names & seen
        seen |= names
        (spec,) = [item for item in plan.objects if "spec.json" in (item.get("data") or {})]
        assert spec["metadata"]["name"] in names
        assert json.loads(spec["data"]["spec.json"])["attempt"] == number
        assert len(plan.objects) == len(first.objects) + (kind == "pods" and number > 0)
        assert len({(item["kind"], item["metadata"]["name"]) for item in plan.objects}) == len(plan.objects)
