"""What is read back of a run to start it again, without what Kueue has added to admit it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from launcher.backends.kubernetes import live
from launcher.backends.kubernetes.pod import QUEUE_LABEL

if TYPE_CHECKING:
    from launcher.backends.kubernetes.handle import KubernetesHandle

TOPOLOGY, OWN = {"name": "kueue.x-k8s.io/topology"}, {"name": "team/ready"}
HANDLE = cast("KubernetesHandle", {"run": "x-1", "name": "x-1", "kind": "job", "nodes": 1})


class Cluster:
    """A cluster that has the ConfigMap of the run, and nothing else."""

    namespace = "team"

    def call(self, *_: object) -> dict[str, Any]:
        return {"metadata": {"name": "x-1"}, "data": {"spec.json": json.dumps({"kind": "script"})}}

    def find(self, *_: object) -> None:
        return None


def job(queue: str, **spec: Any) -> dict[str, Any]:
    volumes = [{"name": "input", "projected": {"sources": [{"configMap": {"name": "x-1"}}]}}]
    template = {"metadata": {}, "spec": {"containers": [{"name": "node"}], "volumes": volumes, **spec}}
    labels = {QUEUE_LABEL: queue} if queue else {}
    return {"metadata": {"name": "x-1", "labels": labels}, "spec": {"suspend": False, "template": template}}


@pytest.mark.parametrize(("given", "left"), [([TOPOLOGY], None), ([TOPOLOGY, OWN], [OWN])])
def test_kueue_adds_its_gates_itself(given: list[dict[str, str]], left: list[dict[str, str]] | None) -> None:
    main = live.read(cast("Any", Cluster()), HANDLE, job("team", schedulingGates=given), [])["objects"][-1]

    assert main["spec"]["template"]["spec"].get("schedulingGates") == left


@pytest.mark.parametrize("queue", ["team", ""])
def test_a_node_selector_that_kueue_may_have_added_is_named(capfd: pytest.CaptureFixture[str], queue: str) -> None:
    live.read(cast("Any", Cluster()), HANDLE, job(queue, nodeSelector={"flavor": "spot"}), [])

    assert ("Kueue may have added a part: flavor=spot" in capfd.readouterr().err) is bool(queue)
