"""`--patch` reaches the pods of those kinds that have them in a list of Jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.k8s.rendering import documents, one

if TYPE_CHECKING:
    from tests.command import Cli
    from tests.k8s.conftest import User

pytestmark = pytest.mark.k8s

JOB = "{name: NAME, template: {spec: {template: {spec: {containers: [{name: node, env: [{name: A, value: b}]}]}}}}}"
JOBSET = f"kind: JobSet\nspec: {{replicatedJobs: [{JOB}]}}\n"
RUNTIME = f"kind: TrainingRuntime\nspec: {{template: {{spec: {{replicatedJobs: [{JOB}]}}}}}}\n"
ROLES = "[roles.a]\nnodes = 1\nscript = 'x.py'\n[roles.b]\nnodes = 2\nscript = 'x.py'\n"


def test_the_jobs_of_a_jobset_are_merged_by_the_names_of_the_roles(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    distlaunch.write("run.toml", ROLES)
    distlaunch.write("patch.yaml", JOBSET.replace("NAME", "b"))

    done = distlaunch(
        "k8s", "--dry-run", "--kind", "jobset", "--image", "i", "--roles", "run.toml", "--patch", "patch.yaml"
    )

    assert done.exit_code == 0, done.stderr
    jobs = {
        job["name"]: job["template"]["spec"] for job in one(documents(done.stdout), "JobSet")["spec"]["replicatedJobs"]
    }
    assert {name: job["completions"] for name, job in jobs.items()} == {"a": 1, "b": 2}
    variables = {name: job["template"]["spec"]["containers"][0]["env"] for name, job in jobs.items()}
    assert {name: {"name": "A", "value": "b"} in found for name, found in variables.items()} == {"a": False, "b": True}


def test_a_patched_jobset_and_a_patched_trainjob_run(kinds: User) -> None:
    kinds.write("shows.py", "import os; print('A is', os.environ['A'])\n")
    kinds.write("jobset.yaml", JOBSET.replace("NAME", "n"))
    kinds.write("trainjob.yaml", RUNTIME.replace("NAME", "node"))

    runs = {
        kind: kinds.follow("--kind", kind, "--patch", f"{kind}.yaml", "shows.py") for kind in ("jobset", "trainjob")
    }

    for kind, run in runs.items():
        done = run.result()
        assert (done.exit_code, done.stdout) == (0, "A is b\n"), f"{kind}: {done.stderr}"
