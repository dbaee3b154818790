"""Of many tests a run has a few, others at each commit."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.command import ROOT
from tests.plugins import rotation


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_each_test_has_its_turn_and_all_processes_of_a_run_agree(size: int) -> None:
    tests = [f"test-{number}" for number in range(size)]
    commits = range(100, 100 + rotation.FUNCTIONS * size)
    turns = [rotation.of_function(tests, 7, number) for number in commits]

    assert sorted(test for turn in turns for test in turn) == tests
    assert all(len(turn) == (index % rotation.FUNCTIONS != 0) for index, turn in enumerate(turns))
    assert turns == [rotation.of_function(tests, 7, number) for number in commits]


@pytest.mark.parametrize(("words", "all_of_them"), [(("--subject=frameworks",), True), ((), False)])
def test_all_run_if_their_subject_is_requested(words: tuple[str, ...], all_of_them: bool) -> None:
    names = [f"tests/frameworks/test_failures.py::test_{where}[" for where in ("on_slurm", "on_kubernetes", "over_ssh")]
    others = [f"--ignore={path}" for path in sorted((ROOT / "tests").glob("*")) if path.name != "frameworks"]
    argv = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", *words, *others)

    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout[-2000:]
    counts = [done.stdout.count(name) for name in names]
    assert all(count > 1 for count in counts) if all_of_them else (max(counts), min(counts)) == (1, 0), counts


@pytest.mark.parametrize(
    ("words", "file", "part"),
    [
        (("--subject=k8s",), "tests/k8s/test_rights.py", 1),
        ((), "tests/k8s/test_rights.py", rotation.ON_CLUSTERS),
        (("--subject=train",), "tests/train/test_trainer_steps.py", 1),
        ((), "tests/train/test_trainer_steps.py", rotation.SLOW),
        (("-k", "test_trainer_steps"), "tests/train/test_trainer_steps.py", 1),
        ((), "tests/config/test_layers.py", 1),
    ],
)
def test_a_full_run_has_all_fast_tests_and_of_others_a_part(words: tuple[str, ...], file: str, part: int) -> None:
    others = [f"--ignore={path}" for path in sorted((ROOT / "tests").glob("*")) if path.name not in file.split("/")]

    whole, found = (collected(file, *selected) for selected in ((file,), (*words, *others)))

    assert whole > rotation.ON_CLUSTERS
    assert whole // part <= found <= -(-whole // part)


def collected(file: str, *words: str) -> int:
    """How many tests of the file are selected."""
    argv = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", *words)
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout.count(f"{file}::")


def test_each_slow_test_of_a_file_has_its_turn() -> None:
    """One of three commits in a row, whichever these are."""
    tests = [*range(7)]
    turns = [[number for number in tests if rotation.has_its_turn(number, commit, 3, "a/b.py")] for commit in (5, 6, 7)]

    assert sorted(number for turn in turns for number in turn) == tests
