"""Ended runs of kinds that no controller removes: the next submission removes them, and never fails because of that."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from launcher.backends.kubernetes import api, rights
from launcher.backends.kubernetes import ttl as kube_ttl
from launcher.backends.kubernetes.objects import TTL_NOTE
from launcher.backends.kubernetes.options import KubernetesOptions
from launcher.backends.kubernetes.pod import RUN_LABEL
from tests.k8s.conftest import KINDS
from tests.k8s.test_api import GONE, answering

if TYPE_CHECKING:
    from pathlib import Path

    from tests.k8s.conftest import User
    from tests.k8s.proxy import Proxy

PODS = ("--kind", "pods")


@pytest.mark.k8s
def test_the_rights_that_are_checked_before_are_enough_to_submit(user: User) -> None:
    """The right to look for ended runs is not among them."""
    opts = KubernetesOptions(image="i", kind="pods")
    made = [{"kind": kind} for kind in ("ConfigMap", "Service", "Pod")]
    wanted = [right for right in rights.needed(opts, made) if right != ("", "configmaps", "list")]
    rules = [{"apiGroups": [group], "resources": [resource], "verbs": [verb]} for group, resource, verb in wanted]
    account = user.with_rights("least", rules)

    done = account("k8s", "--detach", "-v", *PODS, "--no-network-policy", "x.py")

    assert done.exit_code == 0, done.stderr
    assert 'ended runs are not removed: configmaps is forbidden: User "' in done.stderr
    assert "cannot list resource" in done.stderr
    user.wait_pods(done.stdout.strip(), 1)


@pytest.mark.k8s
def test_ended_runs_are_removed_and_the_files_of_runs_are_not_fetched(user: User, proxy: Proxy) -> None:
    (user.cli.directory / "noise.bin").write_bytes(random.Random(1).randbytes(400_000))
    configs, pods = KINDS["configmaps"].format(user.namespace), KINDS["pods"].format(user.namespace)
    foreign = {"name": "odd", "labels": {"distlaunch/run": "odd"}, "annotations": {"distlaunch/ttl-seconds": "\u00b2"}}
    user.kube.api.post(configs, {"metadata": foreign})
    ended, kept = (user.detached(*PODS, "--ttl", ttl, "x.py") for ttl in ("1s", "1d"))
    for run, at in ((ended, 0.0), (kept, time.time())):
        over = {
            "terminated": {
                "exitCode": 0,
                "finishedAt": datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        }
        own = {"name": "node", "state": over, "image": "i", "imageID": "i", "ready": False, "restartCount": 0}
        user.kube.api.patch(f"{pods}/{run}-0/status", {"status": {"phase": "Succeeded", "containerStatuses": [own]}})
    account = replace(user, kubeconfig=user.write("proxy.kubeconfig", proxy.kubeconfig()))

    listed = [ended]
    while ended in listed:  # until it is old enough
        told = account("ls", "--on", "k8s", "--output", "json", env={"DISTLAUNCH_KIND": "pods"}).json["result"]
        listed = [item["run"] for item in told["runs"]]
    assert 0 < proxy.given[f"GET {configs}"] < 50_000, "of runs that are shown, too"
    run = account.detached(*PODS, "x.py")

    user.wait_nothing_left(ended)
    assert {kept, run} <= {what.partition(" ")[2] for what in user.left() if what.startswith("configmaps ")}
    assert 0 < proxy.given[f"GET {configs}"] < 50_000


@pytest.mark.parametrize(("age_h", "removed"), [(24, False), (26, True)])
def test_a_run_whose_pods_were_deleted_goes_a_day_after_its_time_to_live(
    tmp_path: Path, age_h: int, *, removed: bool
) -> None:
    """Its files may take 24 MB of the cluster's database."""
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3600 * age_h))
    meta = {"name": "x-1", "uid": "7", "labels": {RUN_LABEL: "x-1"}, "creationTimestamp": created}
    maps = {"items": [{"metadata": {**meta, "annotations": {TTL_NOTE: "3600"}}}]}
    answers: list[tuple[int, str] | None] = [(200, json.dumps(maps)), (200, '{"items": []}'), (200, "{}")]
    with answering(tmp_path, answers) as (cluster, asked):
        kube_ttl.sweep(cluster, KubernetesOptions(image="i", kind="pods"))

    assert ("DELETE" in asked) is removed


@pytest.mark.parametrize(
    "bad",
    [(403, ""), (503, ""), GONE, (200, "[]"), (200, '{"items": [{}]}')],
    ids=["no right", "busy", "gone", "a list", "nothing"],
)
@pytest.mark.parametrize("kind", ["pods", "trainjob"])
def test_removing_ended_runs_never_fails_a_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, bad: tuple[int, str] | None
) -> None:
    monkeypatch.setattr(api, "time", SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic))
    with answering(tmp_path, [bad] * 4) as (cluster, asked):
        kube_ttl.sweep(cluster, KubernetesOptions(image="i", kind=kind))

    assert asked
