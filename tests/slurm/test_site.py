"""What sites and users add to a job: a copy of their files, containers, setup lines."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.slurm.conftest import Login

pytestmark = pytest.mark.slurm


def test_a_snapshot_keeps_what_was_there_at_submission(login: Login) -> None:
    directory = login.cli.directory / "project"
    login.write("project/lib.py", "VALUE = 'committed'\n")
    login.write("project/.gitignore", "*.bin\n")
    login.write(
        "project/sub/main.py",
        "import os, sys\nsys.path.insert(0, '..')\nimport lib\nprint(lib.VALUE, os.listdir('..'))\n",
    )
    (directory / "data").symlink_to("/usr/share")
    for argv in (["init", "-q"], ["add", "-A"], ["-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", "x"]):
        subprocess.run(["git", *argv], cwd=directory, check=True, env={**os.environ, "HOME": str(login.cli.directory)})
    login.write("project/lib.py", "VALUE = 'as it was then'\n")
    login.write("project/large.bin", "not for the run\n")

    run = login.detach("copy", "--snapshot", "--sbatch", "hold", "main.py", cwd=directory / "sub")
    login.write("project/lib.py", "VALUE = 'as it is now'\n")
    login.slurm.run(("scontrol", "release", run.job))
    done = login("logs", "--follow", run.id)

    said = done.stdout
    assert done.exit_code == 0, done.stderr
    assert said.count("as it was then") == 1
    assert "large.bin" not in said
    assert "'data'" in said, "a link to a file system that all nodes see stays one"


def test_setup_lines_and_files_run_before_the_step(login: Login) -> None:
    fragment = login.write("modules.sh", "export FROM_FILE='a file'\n")
    login.write("show.py", "import os\nprint(os.environ['FROM_FILE'], os.environ['FROM_LINE'])\n")

    done = login("slurm", "--setup", f"@{fragment}", "--setup", "export FROM_LINE='a line'; echo loaded", "show.py")

    assert done.stdout == "a file a line\n", done.stderr
    assert "[job] loaded" in done.stderr


def test_a_program_beside_the_named_python_is_found_and_needs_no_torch(login: Login) -> None:
    """As in that environment, if it were activated."""
    directory = login.cli.directory / "env"
    venv.create(directory, symlinks=True)
    tool = login.write("env/bin/a-tool", '#!/bin/sh\necho "$RANK $(command -v python) $*"\n')
    tool.chmod(0o755)

    options = ("--nodes", "2", "--log-ranks", "all", "--python", f"{directory}/bin/python", "--no-python")
    done = login("slurm", *options, "a-tool", "--x")

    assert done.exit_code == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}:{rank}] {rank} {directory}/bin/python --x" for rank in range(2)
    ]


def test_a_setup_line_that_fails_ends_the_job_and_is_reported(login: Login) -> None:
    login.write("show.py", "print('never')\n")

    done = login("slurm", "--setup", "no-such-module load cuda", "--setup", "echo went on", "show.py")

    assert done.exit_code == 1, done
    assert "[job] distlaunch: setup failed with code 127: no-such-module load cuda" in done.stderr
    assert "went on" not in done.stderr
    assert done.stdout == ""


RUNTIME = """#!/bin/bash
# Stands for Apptainer: takes the same arguments, and runs the command as it is.
printf '%s\\n' "$@" > {said}
while [ "$1" != image.sif ]; do shift; done
shift
IN_CONTAINER=yes exec "$@"
"""


def test_apptainer_runs_the_agent_with_the_directories_that_it_needs(login: Login) -> None:
    said = login.cli.directory / "said"
    program = login.write("bin/apptainer", RUNTIME.format(said=said))
    program.chmod(0o755)
    login.write("show.py", "import os\nprint(os.environ['IN_CONTAINER'])\n")
    options = ("--container-runtime", "apptainer", "--container-image", "image.sif", "--container-mounts", "/a b:/data")

    done = login("slurm", *options, "--python", sys.executable, "--setup", f"PATH={program.parent}:$PATH", "show.py")

    assert done.stdout == "yes\n", done.stderr
    words = said.read_text().splitlines()
    directory, run = str(login.cli.directory), str(next(login.cli.runs.glob("show*")))
    assert words[:9] == [
        "exec",
        "--bind",
        f"{run}:{run}",
        "--bind",
        f"{directory}:{directory}",
        "--bind",
        "/a b:/data",
        "--pwd",
        directory,
    ]
