"""A run moves from Kubernetes to this machine and back: its files leave the pods before these are gone, and return."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests.moving import STEPS, went_on

if TYPE_CHECKING:
    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(600)]

IN_ALL = 200


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_checkpoint_leaves_the_pods_of_a_run_that_is_moved_and_returns_to_others(pods: User, nodes: str) -> None:
    pods.write("steps.py", STEPS)
    there: dict[str, object] = {
        "backend": "k8s", "kubeconfig": str(pods.kubeconfig), "namespace": pods.namespace, "image": pods.image,
        "gpus_per_node": 0,
    }  # fmt: skip
    clusters: dict[str, dict[str, object]] = {"gke": there, "here": {"backend": "local", "python": sys.executable}}
    text = ""
    for name, values in clusters.items():
        text += f"[clusters.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    pods.cli.write("system.toml", text)
    none: dict[str, str | None] = {"KUBECONFIG": None, "DISTLAUNCH_NAMESPACE": None, "DISTLAUNCH_IMAGE": None}
    started = pods("run", "--on", "gke", "--nodes", nodes, "--detach", "steps.py", str(IN_ALL), env=none)
    assert started.exit_code == 0, started.stderr
    run = started.stdout.strip()
    pods.wait_printed(run, "step 3", int(nodes))

    left = pods("move", run, "--to", "here", "--carry", "out/**", "--node", "all", env=none)
    assert left.exit_code == 0, left.stderr
    pods.wait_nothing_left(run)
    saved = pods.cli.directory / "out" / "state-0"
    assert 0 < int(saved.read_text()) < IN_ALL
    back = pods("move", run, "--to", "gke", "--carry", "out/**", env=none)
    assert back.exit_code == 0, back.stderr

    assert pods("wait", run, env=none).exit_code == 0
    went_on(pods("logs", run, env=none).stdout, IN_ALL, 3)
    ended = pods("move", run, "--to", "here", env=none)
    assert (ended.exit_code, f"{run} has succeeded" in ended.stderr) == (2, True)
