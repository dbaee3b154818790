"""`distlaunch clusters`: each cluster has a row, whatever the others do."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import distlaunch as api
from launcher.service import clusters
from launcher.settings import config

if TYPE_CHECKING:
    from tests.command import Cli


def test_a_cluster_that_cannot_be_asked_has_the_reason_in_its_row(distlaunch: Cli) -> None:
    distlaunch.write(
        "distlaunch.toml",
        '[clusters.here]\nbackend = "local"\n'
        '[clusters.rack]\nbackend = "ansible"\ninventory = ["missing.ini"]\n'
        '[clusters.gke]\nbackend = "k8s"\nkubeconfig = "missing"\n'
        '[clusters.old]\nbackend = "slrum"\n',
    )

    done = distlaunch("clusters", "--gpus-per-node", "64", env={"CUDA_VISIBLE_DEVICES": ""})

    assert done.exit_code == 0
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert rows.keys() == {"CLUSTER", "here", "rack", "gke", "old"}
    assert "missing.ini" in rows["rack"]
    assert "kubeconfig" in rows["gke"]
    assert "unknown backend 'slrum'" in rows["old"]
    assert "unknown (it has only" in rows["here"]
    assert distlaunch("clusters", "gke", "old").exit_code == 3
    assert "did you mean rack?" in distlaunch("clusters", "rakc").stderr


@pytest.mark.parametrize("words", [("--nodes", "x"), ("--nproc-per-node", "0"), ("--time", "30")])
def test_an_option_that_no_cluster_can_accept_is_an_error_and_no_row(distlaunch: Cli, words: tuple[str, str]) -> None:
    distlaunch.write("distlaunch.toml", '[clusters.here]\nbackend = "local"\n')

    done = distlaunch("clusters", *words, "--output", "json")

    assert (done.exit_code, done.json["ok"]) == (2, False)
    assert done.json["error"]["message"].startswith(words[0])
    assert distlaunch("clusters", *words).stdout == ""


@pytest.mark.parametrize("time", [3600, timedelta(hours=36), "2h"])
def test_a_program_gives_the_job_as_it_would_submit_it(
    distlaunch: Cli, monkeypatch: pytest.MonkeyPatch, time: object
) -> None:
    distlaunch.write("distlaunch.toml", '[clusters.here]\nbackend = "local"\n')
    monkeypatch.chdir(distlaunch.directory)

    (found,) = api.cluster_overviews(nodes=(2, 4), nproc_per_node=1, time=time)

    assert found["problem"] is None
    assert found["start"] is not None
    with pytest.raises(api.SpecError, match="gpus_per_nodes") as caught:
        api.cluster_overviews(nodes=1, gpus_per_nodes=8)
    assert "did you mean gpus_per_node?" in str(caught.value.hint)
    with pytest.raises(api.SpecError, match="nodes 0 is out of range"):
        api.cluster_overviews(nodes=0)


def test_without_clusters_it_says_how_to_name_some(distlaunch: Cli) -> None:
    done = distlaunch("clusters")

    assert done.exit_code == 2
    assert "[clusters.NAME]" in done.stderr


def test_a_cluster_that_does_not_answer_does_not_delay_the_others(
    distlaunch: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    distlaunch.write("distlaunch.toml", '[clusters.dead]\nbackend = "slurm"\n[clusters.here]\nbackend = "local"\n')
    gate = distlaunch.write("bin/squeue", "#!/bin/sh\nexec sleep 20\n")
    gate.chmod(0o755)
    monkeypatch.setenv("PATH", f"{gate.parent}:/usr/bin:/bin")
    monkeypatch.chdir(distlaunch.directory)
    monkeypatch.setattr(clusters, "LIMIT_S", 2.0)

    found = list(clusters.overviews(config.load(), ["dead", "here"], {}))

    assert [(each["cluster"], each["problem"]) for each in found] == [("here", None), ("dead", "no answer within 2 s")]
