"""The same report of a run on each backend."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.frameworks.catalog import BY_NAME

if TYPE_CHECKING:
    from tests.frameworks.place import Place

pytestmark = [pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "where",
    [
        pytest.param("on_slurm", marks=pytest.mark.slurm),
        pytest.param("over_ssh", marks=pytest.mark.ssh),
        pytest.param("in_pods", marks=pytest.mark.k8s),
    ],
)
def test_a_run_on_a_cluster_has_its_start_up_lines_settings_and_end(request: pytest.FixtureRequest, where: str) -> None:
    place: Place = request.getfixturevalue(where)
    done = place.run(BY_NAME["env-python"], "--name=reported")
    assert done.exit_code == 0, done.stdout + done.stderr

    asked = place.other("report", "last", "--format", "json")

    assert asked.exit_code == 0, asked.stderr
    report = json.loads(asked.stdout)
    assert report["verdict"].startswith("Success after ")
    assert report["missing"] == []
    assert [node["node"] for node in report["startup"]["nodes"]] == [0, 1]
    for node in report["startup"]["nodes"]:
        names = [phase["name"] for phase in node["phases"]]
        assert names == ["queue", "agent", "import", "rendezvous", "workers", "first line"]
    assert [each["world_size"] for each in report["rounds"]] == [4]
    assert sorted(log["rank"] for log in report["logs"]) == [0, 1, 2, 3]
    assert all(any("sum 10" in line["text"] for line in log["lines"]) for log in report["logs"])
    assert report["settings"]["name"] == {"value": "reported", "source": "flag"}
    assert place.other("report", "last", "-o", "run.html").exit_code == 0
