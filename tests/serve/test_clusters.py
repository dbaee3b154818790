"""Runs of a cluster, as they are served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.frameworks.catalog import BY_NAME
from tests.frameworks.conftest import on_slurm
from tests.serve.conftest import serving

if TYPE_CHECKING:
    from tests.frameworks.place import Place

__all__ = ["on_slurm"]
pytestmark = [pytest.mark.timeout(600)]


@pytest.mark.slurm
def test_the_tasks_of_an_array_are_listed_and_each_has_its_page(on_slurm: Place) -> None:
    done = on_slurm.run(BY_NAME["env-python"], "--array=0-1", "--name=tasks")
    assert done.exit_code == 0, done.stdout + done.stderr
    (run,) = on_slurm.cli.runs.iterdir()

    with serving(on_slurm.cli, env=dict(on_slurm.variables())) as server:
        page = server.ask(f"/runs/{run.name}")
        assert page.status == 200
        for task in (0, 1):
            assert f'href="/runs/{run.name}/{task}"' in page.text
            assert f"{run.name}/{task}" in server.ask(f"/runs/{run.name}/{task}").text
            found = server.json(f"/runs/{run.name}/{task}.json")
            assert (found["run"], found["state"]) == (f"{run.name}/{task}", "success")
        assert [each["state"] for each in server.json("/runs.json")["runs"]] == ["success"]
