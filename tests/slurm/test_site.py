"""What sites and users add to a job: a copy of their files, containers, setup lines."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.testbed import wait_until

if TYPE_CHECKING:
    from tests.slurm.conftest import Login

pytestmark = pytest.mark.slurm


def test_a_snapshot_keeps_what_was_there_at_submission(login: Login) -> None:
    folder = login.cli.folder / "project"
    login.write("project/lib.py", "VALUE = 'committed'\n")
    login.write("project/.gitignore", "*.bin\n")
    login.write(
        "project/sub/main.py", "import os, sys\nsys.path.insert(0, '..')\nimport lib\nprint(lib.VALUE, os.listdir('..'))\n"
    )
    (folder / "data").symlink_to("/usr/share")
    for argv in (["init", "-q"], ["add", "-A"], ["-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", "x"]):
        subprocess.run(["git", *argv], cwd=folder, check=True, env={**os.environ, "HOME": str(login.cli.folder)})
    login.write("project/lib.py", "VALUE = 'as it was then'\n")
    login.write("project/large.bin", "not for the run\n")

    blocker = login.slurm.sbatch("#!/bin/sh\nsleep 600\n", "--nodes=4", "--exclusive")
    login.slurm.wait_job(blocker, "RUNNING")
    run = login("slurm", "--snapshot", "--detach", "main.py", cwd=folder / "sub").stdout.strip()
    login.write("project/lib.py", "VALUE = 'as it is now'\n")
    login.slurm.run(("scancel", blocker), check=True)
    wait_until("the run's end", lambda: login("status", run, "--output", "json").json["result"]["exit_code"] == 0, limit_s=60)

    said = login("logs", run).stdout
    assert "as it was then" in said
    assert "large.bin" not in said
    assert "'data'" in said, "a link to a file system that all nodes see stays one"


def test_setup_lines_and_files_run_before_the_step(login: Login) -> None:
    fragment = login.write("modules.sh", "export FROM_FILE='a file'\n")
    login.write("show.py", "import os\nprint(os.environ['FROM_FILE'], os.environ['FROM_LINE'])\n")

    done = login("slurm", "--setup", f"@{fragment}", "--setup", "export FROM_LINE='a line'; echo loaded", "show.py")

    assert done.stdout == "a file a line\n", done.stderr
    assert "[job] loaded" in done.stderr
    missing = login("slurm", "--setup", "@/no/such/file", "show.py")
    assert missing.exit_code == 2
    assert "/no/such/file" in missing.stderr


RUNTIME = """#!/bin/bash
# Stands for Apptainer: takes the same arguments, and runs the command as it is.
printf '%s\\n' "$@" > {said}
while [ "$1" != image.sif ]; do shift; done
shift
IN_CONTAINER=yes exec "$@"
"""


def test_apptainer_runs_the_agent_with_the_folders_that_it_needs(login: Login) -> None:
    said = login.cli.folder / "said"
    program = login.write("bin/apptainer", RUNTIME.format(said=said))
    program.chmod(0o755)
    login.write("show.py", "import os\nprint(os.environ['IN_CONTAINER'])\n")
    options = ("--container-runtime", "apptainer", "--container-image", "image.sif", "--container-mounts", "/a b:/data")

    done = login("slurm", *options, "--python", sys.executable, "--setup", f"PATH={program.parent}:$PATH", "show.py")

    assert done.stdout == "yes\n", done.stderr
    words = said.read_text().splitlines()
    folder, run = str(login.cli.folder), str(next(login.cli.runs.glob("show*")))
    assert words[:9] == [
        "exec",
        "--bind",
        f"{run}:{run}",
        "--bind",
        f"{folder}:{folder}",
        "--bind",
        "/a b:/data",
        "--pwd",
        folder,
    ]


def test_pyxis_gets_its_options(login: Login) -> None:
    options = ("--container-image", "nvcr.io#nvidia/pytorch:24.10-py3", "--container-mounts", "/data:/data")

    text = login("slurm", "--dry-run", *options, "reduce.py").stdout

    folder = str(login.cli.folder)
    assert "'--container-image=nvcr.io#nvidia/pytorch:24.10-py3'" in text
    assert f",{folder}:{folder},/data:/data" in text
    assert f"--container-workdir={folder}" in text
    assert "    python3 " in text, "the container's own"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--container-mounts", "/a:/b"), "name one"),
        (("--container-image", "x", "--container-runtime", "docker"), "known: pyxis, apptainer, singularity"),
        (("--container-image", "x", "--container-mounts", "/a,b:/c"), "no comma"),
        (("--array", "0-x"), "no range of indices"),
        (("--nodes", "9"), "no partition has more than 4"),
        (("--nodes", "9", "--partition", "short"), "partition short has 4"),
    ],
)
def test_what_cannot_be_is_told_before_submission(login: Login, options: tuple[str, ...], words: str) -> None:
    done = login("slurm", *options, "reduce.py")

    assert done.exit_code == 2
    assert words in done.stderr
    assert login.slurm.run(("squeue", "-h", "--me", "--states=PD,R")).stdout == ""
