"""GPUs are counted as CUDA would show them, and divided among simulated nodes."""

from __future__ import annotations

import os

import pytest

from launcher.agent.job import Job
from launcher.agent.node import environment
from launcher.agent.ssh import leases
from launcher.agent.system import facts, nvml
from launcher.backends.local import gpus as local_gpus
from launcher.backends.local import here
from launcher.torchrun import workers


@pytest.mark.parametrize(
    ("variable", "seen"),
    [
        (None, ["0", "1", "2", "3"]),
        ("2,0", ["2", "0"]),
        ("", []),
        ("-1", []),
        ("1,7,0", ["1"]),  # CUDA stops at the first that is not there
        ("GPU-aa,MIG-bb", ["GPU-aa", "MIG-bb"]),
        (" 3 , 1", ["3", "1"]),
    ],
)
def test_visible_devices_are_read_by_cudas_rules(variable: str | None, seen: list[str]) -> None:
    assert facts.visible(variable, 4) == seen


@pytest.mark.parametrize(
    ("env", "seen"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,1"}, ["2", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "3"}, ["3"]),
        ({"ROCR_VISIBLE_DEVICES": "0"}, ["0"]),
        ({"ROCR_VISIBLE_DEVICES": "3,GPU-5c88,1", "HIP_VISIBLE_DEVICES": "1,2"}, ["GPU-5c88", "1"]),
        ({}, ["0", "1", "2", "3"]),
    ],
)
def test_amds_gpus_are_chosen_by_the_variable_of_cuda_too(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], seen: list[str]
) -> None:
    monkeypatch.setattr(nvml, "gpus", lambda: 0)
    monkeypatch.setattr(facts, "_amd_gpus", lambda: 4)

    assert facts.gpus(env) == seen


@pytest.mark.parametrize(
    ("visible", "virtual", "count"),
    [("MIG-a,MIG-b", False, 1), ("MIG-a,MIG-b", True, 2), ("2,0", False, 2), ("", False, 1)],
)
def test_workers_are_as_many_as_have_a_gpu_each_that_cuda_shows_them(
    monkeypatch: pytest.MonkeyPatch, visible: str, virtual: bool, count: int
) -> None:
    monkeypatch.setattr(nvml, "gpus", lambda: 4)
    monkeypatch.setattr(workers, "_knows_gpus", lambda: True)
    job = Job(
        "r-1", ["x.py"], "script", "/", {"CUDA_VISIBLE_DEVICES": visible}, "/", {}, min_nodes=1, max_nodes=1,
        key="k" * 64, workers="auto", virtual_local_rank=virtual,
    )  # fmt: skip

    assert environment.of(job, 0)[1] == count
    if not virtual:
        assert workers.count("auto", {"CUDA_VISIBLE_DEVICES": visible or "3"}, "") == count


@pytest.mark.parametrize(
    ("nodes", "gpus", "shares"),
    [
        (1, "0,1,2,3", None),
        (2, "", None),
        (2, "0,1,2,3", [["0", "1"], ["2", "3"]]),
        (2, "3,1,0", [["3"], ["1"]]),
        (3, "0,1", [["0"], ["1"], ["0"]]),
    ],
)
def test_simulated_nodes_get_an_equal_share_of_the_gpus(
    monkeypatch: pytest.MonkeyPatch, nodes: int, gpus: str, shares: list[list[str]] | None
) -> None:
    monkeypatch.setattr(nvml, "gpus", lambda: 4 if gpus else 0)
    found = local_gpus.shares(nodes, {"CUDA_VISIBLE_DEVICES": gpus})
    assert found == (("CUDA_VISIBLE_DEVICES", shares) if shares else None)


@pytest.mark.parametrize(
    ("env", "seen"),
    [
        ({}, [["0", "1"], ["2", "3"]]),
        ({"HIP_VISIBLE_DEVICES": "3,1", "CUDA_VISIBLE_DEVICES": "0"}, [["3"], ["1"]]),
        ({"ROCR_VISIBLE_DEVICES": "2,0"}, [["2"], ["0"]]),
        ({"ROCR_VISIBLE_DEVICES": "3,2,1", "HIP_VISIBLE_DEVICES": "2,0"}, [["1"], ["3"]]),
    ],
    ids=["none", "HIP", "ROCR", "both"],
)
def test_simulated_nodes_see_only_their_share_of_amds_gpus(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], seen: list[list[str]]
) -> None:
    monkeypatch.setattr(nvml, "gpus", lambda: 0)
    monkeypatch.setattr(facts, "_amd_gpus", lambda: 4)
    found = local_gpus.shares(2, env)

    assert found is not None
    assert [facts.gpus({**env, found[0]: ",".join(ids)}) for ids in found[1]] == seen


def test_a_machine_that_does_not_tell_its_load_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> tuple[float, float, float]:
        raise OSError("Load averages are unobtainable")

    monkeypatch.setattr(os, "getloadavg", unknown)

    assert facts.load().startswith(f"{facts.cpus()} CPUs")
    assert here.surveyed()["load"] is None
    assert leases.survey({})["load"] is None
