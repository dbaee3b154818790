"""The words of `scripts/test`."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.plugins import command, rotation, subjects
from tests.plugins.subjects import ROOT


def test_every_test_file_has_one_subject() -> None:
    """Running all subjects one by one runs each file once."""
    counted = Counter(path for subject in subjects.known() for path in subjects.files_of([subject]))
    with_tests = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if path.name.startswith("test_")
        and any(
            isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
            for node in ast.walk(ast.parse(path.read_text()))
        )
    ]

    assert set(with_tests) <= set(counted)
    assert set(counted.values()) == {1}


@pytest.mark.parametrize(
    ("path", "subject"),
    [
        ("tests/slurm/test_nodes.py", "slurm"),
        ("tests/ansible/test_run.py::test_x[a/b]", "ssh"),
        ("tests/testbed_tests/test_kube.py", "testbed"),
        ("tests/test_wheel.py::test_it", "project"),
    ],
)
def test_a_subject_is_a_directory(path: str, subject: str) -> None:
    assert subjects.subject_of(path) == subject
    assert subject in subjects.known()


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("", ""),
        ("fast", "--tier=fast"),
        ("slurm ssh -x -k a", "--subject=slurm --subject=ssh -x -k a"),
        ("changed fast cli", "--tier=fast --subject=cli --changed"),
        ("tests/test_wheel.py -q", "tests/test_wheel.py -q"),
        ("fast tests/test_wheel.py::test_x", "--tier=fast tests/test_wheel.py::test_x"),
        ("-n0 fast", "-n0 fast"),
    ],
)
def test_words_before_the_first_option_or_path_select_tests(
    words: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    argv = command.argv(subjects.request(words.split()), cores=2)

    assert argv[:4] == [sys.executable, "-m", "pytest", f"--numprocesses={command.PROCESSES}"]
    assert argv[4:] == options.split()


@pytest.mark.parametrize(("commit", "measured"), [(8, ["--cov"]), (9, [])])
def test_ci_measures_coverage_at_some_commits_and_one_core_has_one_process(
    monkeypatch: pytest.MonkeyPatch, commit: int, measured: list[str]
) -> None:
    monkeypatch.setenv("CI", "1")
    monkeypatch.setattr(rotation, "commit", lambda: commit)

    assert command.argv(subjects.request(["fast"]), cores=1)[3:] == ["--numprocesses=0", "--tier=fast", *measured]
    assert command.argv(subjects.request(["--cov-by-test"]), cores=8)[3:] == [
        f"--numprocesses={command.PROCESSES}",
        "--cov-by-test",
    ]


def test_an_unknown_word_lists_the_known_ones() -> None:
    argv = (sys.executable, "-m", "tests.plugins.command", "fast", "slurn")
    done = subprocess.run(argv, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, timeout=60)

    assert done.returncode == 2
    assert done.stdout == ""
    first, *rest = done.stderr.splitlines()
    assert first == "unknown word: slurn"
    assert all(
        name in rest[-1].split()
        for name in ("slurm", "ssh", "k8s", "train", "agent", "cli", "fabric", "testbed", "benchmarks")
    )
