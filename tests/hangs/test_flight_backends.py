"""On real clusters too, nodes compare the dumps of their ranks. The recorder is one that the user has switched on."""

from __future__ import annotations

import pickle
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from tests.frameworks.conftest import in_pods, on_slurm, over_ssh
from tests.hangs.test_flight import AS_NCCL

if TYPE_CHECKING:
    from pathlib import Path

    from tests.frameworks.place import Place

__all__ = ["in_pods", "on_slurm", "over_ssh"]
pytestmark = [pytest.mark.timeout(600), pytest.mark.torch]


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("on_slurm", marks=pytest.mark.slurm),
        pytest.param("over_ssh", marks=pytest.mark.ssh),
        pytest.param("in_pods", marks=pytest.mark.k8s),
    ],
)
def test_the_cause_names_the_collective_and_the_whole_dumps_are_fetched(
    request: pytest.FixtureRequest, place: str, tmp_path: Path
) -> None:
    found: Place = request.getfixturevalue(place)
    shutil.copy(AS_NCCL, found.work)
    more = [f"--python={sys.executable}"] if found.backend == "ansible" else []
    more += [f"--volume=hostpath:{found.work}:{found.work}"] if found.mounts else []
    words = ["--nodes=2", "--nproc-per-node=1", "--grace=2s", "--env=TORCH_FR_DUMP_TEMP_FILE=rank_", *more]
    fetch = ["--fetch=rank_*", "--fetch-node=all", f"--fetch-to={tmp_path / 'dumps'}"]

    run = found.other(found.backend, *found.where, *words, *fetch, "--output=json", "as_nccl.py", "late", "8")

    cause = run.json["result"]["cause"]
    assert (cause["class"], cause["rank"]) == ("collective", 1), run.stderr
    assert "never called all_reduce #17 (as_nccl.py:" in cause["message"], cause["message"]
    fetched = tmp_path.glob("dumps/**/rank_*")  # one directory per host, unless they share a disk
    assert {path.name: pickle.loads(path.read_bytes())["entries"][-1]["state"] for path in fetched} == {
        "rank_0": "started",
        "rank_1": "completed",
    }
