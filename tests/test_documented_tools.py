"""The documentation's commands other than `distlaunch`: tests, lint, benchmarks, testbeds, installation."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed.running import Running
from tests.benchmarks.test_benchmarks import ONLY_STARTED, SMALLEST, SMALLEST_ON_CLUSTERS
from tests.command import ROOT
from tests.shell_blocks import every, lines

if TYPE_CHECKING:
    from tests.shell_blocks import Line


@every("benchmark")
def test_documented_benchmarks_are_run_by_tests(line: Line) -> None:
    """With options that make them small; the documented commands have none."""
    ((name, _),) = re.findall(r"^\.venv/bin/python benchmarks/(\w+\.py)( CHECKOUT| --python PATH)?$", line.text)

    assert name in {*SMALLEST, *SMALLEST_ON_CLUSTERS, *ONLY_STARTED}


@pytest.mark.torch
@every("other versions")
def test_commands_for_other_versions_select_some(line: Line) -> None:
    """Nothing is run, and nothing installed."""
    program, *words = shlex.split(line.text)
    done = subprocess.run([ROOT / program, *words, "--list"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) >= {*words, "torch-2.4"}


@pytest.mark.slow
@every("tests")
def test_commands_for_tests_select_some(tmp_path: Path, line: Line) -> None:
    """They are not run: this is such a run."""
    if "changed" in line.text and not (ROOT / ".git").exists():
        pytest.skip("what has changed is known in a checkout only")
    program, *words = shlex.split(line.text)
    env = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_ADDOPTS")}
    env |= {"DISTLAUNCH_TEST_RESULTS": str(tmp_path)}

    done = subprocess.run(
        [ROOT / program, *words, "--collect-only", "-q"], cwd=ROOT, env=env, capture_output=True, text=True
    )

    # With `changed`, there may be none.
    nothing = done.returncode in (0, 5) and "changed" in line.text and "no tests collected" in done.stdout
    assert done.returncode == 0 or nothing, done.stdout[-2000:] + done.stderr[-2000:]
    assert nothing or "tests/" in done.stdout


@every("lint")
def test_lint_scripts_are_executable(line: Line) -> None:
    """.ci/run runs lint before the tests; tests/test_schema.py compares the schemas with the types."""
    assert os.access(ROOT / line.text.split()[0], os.X_OK)


FEWER = {
    "--hosts 8": "--hosts 4",
    "--switches 4,4": "--switches 2,2",
    "--gpus 8": "--gpus 1",
    "--simulated 1000": "--simulated 5",
}


@pytest.mark.testbed
@pytest.mark.k8s
@pytest.mark.timeout(300)
@every("testbed")
def test_testbeds_start_and_are_removed(line: Line) -> None:
    """The commands that the testbed with sshd and Slurm prints are the documented ones, and they run."""
    if os.geteuid():
        pytest.skip("a testbed needs root")
    text = line.text
    for many, few in FEWER.items():
        text = text.replace(many, few)
    words = [sys.executable, *shlex.split(text)[1:]]
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    up = Running(subprocess.Popen(words, cwd=ROOT, stdin=none, stdout=pipe, stderr=pipe, start_new_session=True))
    try:
        up.until("Ctrl-C takes everything down.")
        if "--ssh" in text:
            run_in_testbed(up.stdout)
        up.process.send_signal(signal.SIGINT)
        assert up.end() == 0, str(up)
    finally:
        up.close()
    assert "taken down" in up.stdout


def run_in_testbed(printed: str) -> None:
    """Run what the documentation types in another shell."""
    (directory,) = re.findall(r"^files and logs: (.*)$", printed, re.MULTILINE)
    typed = "\n".join(re.sub(r"/tmp/distlaunch-testbed-\w+", directory, line.text) for line in lines("in a testbed"))
    shown = {text.strip() for text in printed.splitlines()}
    assert [text for text in typed.splitlines() if text not in shown] == []
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = ["sh", "-ec", typed]
    done = subprocess.run(script, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(done.stdout.split()) >= {"n1", "n2", "n3", "n4"}
    assert '"ping": "pong"' in done.stdout


@pytest.mark.testbed
@pytest.mark.k8s
@every("testbed's own")
def test_the_testbeds_other_commands_run(line: Line) -> None:
    if os.geteuid():
        pytest.skip("a testbed needs root")
    words = [sys.executable, *shlex.split(line.text)[1:]]

    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0 or "build" in words, done.stderr  # without Go nothing can be built, which is reported
    assert done.returncode == 0 or done.stderr.startswith("error: "), done.stderr


@every("an extra")
def test_documented_extras_exist(line: Line) -> None:
    """They are not installed, which would change this environment; tests/test_wheel.py installs a wheel."""
    (name,) = re.findall(r"\[(\w+)\]", line.text)

    assert re.search(rf"^{name} = \[", (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)


@every("to compare with")
def test_packages_to_compare_with_are_used_by_the_benchmarks(line: Line) -> None:
    assert line.text.split()[-1] in (ROOT / "benchmarks/start.py").read_text("utf-8")


@every("by hand")
def test_commands_for_a_rendered_directory_are_run_by_a_test(line: Line) -> None:
    """By tests/ansible/test_by_hand.py, in a directory that was moved, and without the launcher."""
    name = line.text.split()[1].removeprefix("DIR/")

    assert f'run("sh", "{name}"' in (ROOT / "tests/ansible/test_by_hand.py").read_text("utf-8")
