"""The job file that `distlaunch slurm` writes, without a cluster: directives, templates, setup lines, containers."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from launcher.system import install

if TYPE_CHECKING:
    from tests.command import Cli


def job_file(cli: Cli, *options: str) -> list[str]:
    """The lines of a job file that would be sent."""
    cli.write("show.py", "print(1)\n")
    done = cli("slurm", "--dry-run", *options, "show.py")
    assert done.exit_code == 0, done.stderr
    return done.stdout.splitlines()


def test_options_are_in_the_job_file_and_the_users_own_sbatch_options_win(distlaunch: Cli) -> None:
    options = (
        "--nodes",
        "2:4",
        "--time",
        "90m",
        "--lead",
        "2m",
        "--max-requeues",
        "3",
        "--exclusive",
        "--cpus-per-task",
        "6",
    )
    lines = job_file(
        distlaunch, *options, "-p", "gpu", "--sbatch", "partition=best", "--sbatch", "reboot", "--array", "0-3%2"
    )

    directives = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    run = directives[1].removeprefix("--comment=distlaunch:")
    assert directives == [
        "--job-name=show",
        f"--comment=distlaunch:{run}",
        "--nodes=2-4",
        f"--output={distlaunch.runs}/{run}/tasks/%a/job.out",
        "--open-mode=append",
        f"--chdir={distlaunch.directory}",
        "--array=0-3%2",
        "--time=0-01:30:00",
        "--signal=URG@120",
        "--requeue",
        "--partition=best",
        "--cpus-per-task=6",
        "--exclusive",
        "--reboot",
    ]
    assert "    --kill-on-bad-exit=0 --wait=0 --cpus-per-task=6 \\" in lines


def test_without_requeues_slurm_makes_none_and_a_short_limit_has_a_short_lead(distlaunch: Cli) -> None:
    lines = job_file(distlaunch, "--time", "40s", "--max-requeues", "0")

    assert {"#SBATCH --time=0-00:01:00", "#SBATCH --signal=URG@39", "#SBATCH --no-requeue"} <= set(lines)
    assert not any("scontrol requeue" in line for line in lines)


def test_a_rendered_request_finds_its_directory_where_it_is(distlaunch: Cli) -> None:
    """The run's planned directory, whose name is also a prefix of another one, does not remain in it."""
    from launcher.agent.job import Job

    distlaunch.write("show.py", "print(1)\n")
    done = distlaunch("slurm", "--render-to", "out", "--nodes", "2", "reduce.py")
    moved = (distlaunch.directory / "out").rename(distlaunch.directory / "moved here")
    job = Job.read(str(moved / "spec.json"))

    assert done.exit_code == 0, done.stderr
    assert len(job.key) == 64
    assert (moved / "key").stat().st_mode & 0o777 == 0o600
    assert not any(
        job.key in text for text in (done.stdout, (moved / "spec.json").read_text(), (moved / "job.sbatch").read_text())
    )
    assert job.directory == str(moved)
    assert job.rendezvous == {"file": f"{moved}/rendezvous.json"}
    assert job.command == [f"{moved}/payload/reduce.py"]
    assert job.cwd == str(distlaunch.directory)
    other = job._replace(cwd=f"{moved}-2", command=[f"{moved}-2/x.py", str(moved)]).moved_to("/new")
    assert (other.directory, other.cwd, other.command) == ("/new", f"{moved}-2", [f"{moved}-2/x.py", str(moved)])


def test_a_template_with_an_unknown_name_is_refused_with_its_line(distlaunch: Cli) -> None:
    path = distlaunch.write("site.j2", "#!/bin/bash\n#SBATCH -N 1\n{{ no_such_name }}\n")

    done = distlaunch("slurm", "--dry-run", "--template", str(path), "reduce.py")

    assert done.exit_code == 2
    assert "site.j2:3" in done.stderr
    assert "no_such_name" in done.stderr
    assert "directives" in done.stderr


SITE = """#!/bin/bash
#SBATCH -N 1
{% for line in setup %}
{{ line }}
{% endfor %}
srun {{ agent | map("quote") | join(" ") }}
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")
@pytest.mark.parametrize(
    "how", ['{% include "LAB" %}', '{% extends "LAB" %}', '{% import "LAB" as lab with context %}', ""]
)
def test_every_template_that_is_read_has_to_be_ours(distlaunch: Cli, how: str) -> None:
    """Its contents are run on the nodes."""
    lab = distlaunch.write("lab/x.j2", (install.data("slurm_templates") / "job.sbatch.j2").read_text())
    own = distlaunch.write("site.j2", '{% include "job.sbatch.j2" %}\n' + how.replace("LAB", str(lab))) if how else lab
    assert distlaunch("slurm", "--dry-run", "--template", str(own), "reduce.py").exit_code == 0
    os.chown(lab, 54321, 54321)

    done = distlaunch("slurm", "--dry-run", "--template", str(own), "reduce.py")

    assert (done.exit_code, done.stdout) == (2, "")
    assert f"error[untrusted]: template '{lab}': {lab} belongs to 54321" in done.stderr


def test_a_template_is_a_path_from_the_working_directory_or_beside_the_settings_that_name_it(distlaunch: Cli) -> None:
    distlaunch.write("site.j2", SITE)
    distlaunch.write("project/sub/site.j2", SITE)
    text = distlaunch("slurm", "--dry-run", "--template", "site.j2", "reduce.py")
    assert "#SBATCH -N 1\n" in text.stdout, text.stderr
    for given in ("./site.j2", "sub/../site.j2", "~/site.j2"):
        (distlaunch.directory / "sub").mkdir(exist_ok=True)
        assert distlaunch("slurm", "--dry-run", "--template", given, "reduce.py").exit_code == 0, given
    distlaunch.write("project/distlaunch.toml", '[clusters.c]\nbackend = "slurm"\ntemplate = "sub/site.j2"\n')
    by_file = distlaunch("run", "--on", "c", "--dry-run", "reduce.py", cwd=distlaunch.directory / "project/sub")
    assert "#SBATCH -N 1\n" in by_file.stdout, by_file.stderr


@pytest.mark.parametrize(
    "line", ["echo hello", "# srun {{ agent | map('quote') | join(' ') }}", "srun {{ agent[0] }} train.py"]
)
def test_a_template_that_does_not_start_the_agent_is_refused(distlaunch: Cli, line: str) -> None:
    distlaunch.write("site.j2", f"#!/bin/bash\n{line}\n")

    done = distlaunch("slurm", "--dry-run", "--template", "site.j2", "reduce.py")

    assert done.exit_code == 2, done
    assert "site.j2' does not start the agent" in done.stderr
    assert 'agent | map("quote") | join(" ")' in done.stderr


SETUPS = {
    "a line": (["false", "touch {never}"], 1),
    "a code of its own": (["(exit 7)", "touch {never}"], 7),
    "a function": (["load() { return 5; }", "load", "touch {never}"], 5),
    "a line of a file": (["@lines.sh", "touch {never}"], 1),
    "a file that is sourced": (["echo 'false; true; (exit 4)' > inner.sh", "source ./inner.sh", "touch {never}"], 4),
    "what may fail": (
        ["false || true", "if false; then :", "fi", "! true", "x=$(true)", "for i in 1 2; do", "true", "done"],
        0,
    ),
    "within what succeeds": (
        ["echo 'false; true' > inner.sh", "source ./inner.sh", "load() { false; true; }", "load"],
        0,
    ),
}


@pytest.mark.parametrize("case", SETUPS)
@pytest.mark.parametrize("template", ["", "site.j2"])
def test_a_setup_line_that_fails_ends_the_job_file(distlaunch: Cli, case: str, template: str) -> None:
    """The job file itself is run, with programs in place of Slurm's that record that they ran."""
    lines, code = SETUPS[case]
    distlaunch.write("site.j2", SITE)
    distlaunch.write("lines.sh", "export A=1\nfalse\nexport B=2\n")
    for name in ("srun", "scontrol", "timeout"):
        distlaunch.write(f"bin/{name}", f"#!/bin/sh\ntouch {distlaunch.directory}/{name}-ran\n").chmod(0o755)
    never = distlaunch.directory / "never"
    options = [word for line in lines for word in ("--setup", line.replace("{never}", str(never)))]
    done = distlaunch(
        "slurm", *(("--template", template) if template else ()), *options, "--render-to", "job", "reduce.py"
    )
    assert done.exit_code == 0, done.stderr

    env = {**distlaunch.env(), "PATH": f"{distlaunch.directory}/bin:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": "."}
    ran = subprocess.run(
        ["bash", "job.sbatch"],
        cwd=distlaunch.directory / "job",
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ran.returncode == code, ran
    assert (distlaunch.directory / "srun-ran").exists() is (code == 0), ran
    assert not never.exists()
    assert ("distlaunch: setup failed with code" in ran.stderr) is (code != 0), ran


def test_setup_lines_are_those_that_were_written_however_often(distlaunch: Cli) -> None:
    of_file, of_flags = ["set +u", ". a.sh", "set -u"], ["set +u", ". b.sh", "set -u"]
    distlaunch.write("distlaunch.toml", f'[clusters.c]\nbackend = "slurm"\nsetup = {of_file}\n')

    lines = job_file(distlaunch, "--cluster", "c", *(word for line in of_flags for word in ("--setup", line)))

    assert [line for line in lines if line in {*of_file, *of_flags}] == [*of_file, *of_flags]


def test_pyxis_gets_its_options(distlaunch: Cli) -> None:
    options = ("--container-image", "nvcr.io#nvidia/pytorch:24.10-py3", "--container-mounts", "/data:/data")

    text = distlaunch("slurm", "--dry-run", *options, "reduce.py").stdout

    directory = str(distlaunch.directory)
    assert "'--container-image=nvcr.io#nvidia/pytorch:24.10-py3'" in text
    assert f",{directory}:{directory},/data:/data" in text
    assert f"--container-workdir={directory}" in text
    assert "    python3 " in text, "the container's own"


REFUSED = {
    ("--time", "banana"): "is not a duration",
    ("--sbatch", "nodes=3"): "distlaunch sets that itself",
    ("--sbatch", "cpus-per-task=8"): "does not reach the step\n  hint: --cpus-per-task does",
    ("--sbatch", "X=3"): "is not a long option of sbatch",
    ("--template", "nothing.j2"): "nothing.j2",
    ("--setup", "@/no/such/file"): "/no/such/file",
    ("--container-mounts", "/a:/b"): "name one",
    ("--container-image", "x", "--container-runtime", "docker"): "known: pyxis, apptainer, singularity",
    ("--container-image", "x", "--container-mounts", "/a,b:/c"): "no comma",
    ("--array", "0-x"): "is not a range of indices",
}


@pytest.mark.parametrize("options", REFUSED, ids=" ".join)
def test_an_impossible_request_is_one_clear_error_before_slurm_is_asked(
    distlaunch: Cli, options: tuple[str, ...]
) -> None:
    distlaunch.write("show.py", "print(1)\n")
    done = distlaunch("slurm", *options, "show.py", env={"PATH": "/nowhere"})

    assert done.exit_code == 2, done.stderr
    assert done.stderr.startswith("error[bad_spec]: ")
    assert REFUSED[options] in done.stderr
    assert "Traceback" not in done.stderr
    assert not distlaunch.runs.exists()
