"""What pods take of a node, by the requests of their containers."""

from __future__ import annotations

from typing import Any

from launcher.backends.kubernetes.nodes import requests


def container(cpu: str, **more: Any) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}}, **more}


def test_sidecars_and_the_overhead_of_a_runtime_count_as_the_scheduler_counts_them() -> None:
    sidecar = container("2", restartPolicy="Always")
    spec = {"containers": [container("4")], "initContainers": [sidecar, container("1")]}

    assert requests(spec) == {"pods": 1.0, "cpu": 6.0}
    assert requests({**spec, "overhead": {"cpu": "250m", "memory": "1Ki"}})["cpu"] == 6.25
    assert requests({**spec, "initContainers": [sidecar, container("7")]})["cpu"] == 9.0
    assert requests({**spec, "initContainers": [container("7"), sidecar]})["cpu"] == 7.0
    assert requests({}) == {"pods": 1.0}
