"""A run on two clusters, of which one has no room: the other one's pods get it, and the first has nothing left."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.k8s.scripts import MEET

if TYPE_CHECKING:
    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(600)]


def test_pods_that_start_get_the_run_and_those_that_wait_are_deleted(pods: User) -> None:
    pods.write("meet.py", MEET)
    common: dict[str, object] = {
        "backend": "k8s", "kubeconfig": str(pods.kubeconfig), "namespace": pods.namespace, "image": pods.image,
        "nodes": "2", "gpus_per_node": 0,
    }  # fmt: skip
    clusters: dict[str, dict[str, object]] = {"full": {**common, "cpu": "1000"}, "free": common}
    text = ""
    for name, values in clusters.items():
        text += f"[clusters.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    pods.cli.write("system.toml", text)
    none: dict[str, str | None] = {"KUBECONFIG": None, "DISTLAUNCH_NAMESPACE": None, "DISTLAUNCH_IMAGE": None}

    done = pods("run", "--on", "full,free", "--start", "first", "--log-ranks", "all", "meet.py", env=none)

    assert done.exit_code == 0, done.stderr
    assert done.stdout.count("/2: sum 3") == 2
    assert "free starts first and gets the run; cancelling it on full" in done.stderr
    state = pods("status", "last", "--output", "json", env=none).json["result"]
    tries = {each["cluster"]: each for each in state["race"]["tries"]}
    assert tries["full"]["ended_at"] is not None
    assert pods.left(tries["full"]["run"]) == []
    soonest = pods("run", "--on", "full,free", "meet.py", env=none)
    assert soonest.exit_code == 0, soonest.stderr
    assert "free can start it now" in soonest.stderr
