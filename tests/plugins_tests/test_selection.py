"""`--subject`, `--tier` and `--changed`, and what the fast tier prevents."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.plugins import subjects
from tests.plugins.subjects import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.plugins_tests.conftest import Inner


COLLECT = """
import sys
import pytest

class Count:
    def pytest_collection_finish(self, session):
        from tests.plugins import selection
        print("tests", len(session.items), sum(map(selection.is_fast, session.items)))

code = pytest.main(["-n0", "-q", "--collect-only"], plugins=[Count()])
print("torch imported:", "torch" in sys.modules)
sys.exit(code)
"""


def test_no_test_file_imports_torch_when_it_is_collected_and_400_tests_are_fast() -> None:
    done = subprocess.run((sys.executable, "-c", COLLECT), cwd=ROOT, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "torch imported: False" in done.stdout
    (counts,) = (line.split()[1:] for line in done.stdout.splitlines() if line.startswith("tests "))
    assert int(counts[0]) > int(counts[1]) >= 400


def collected(*options: str) -> list[str]:
    """The tests of this project that would run."""
    argv = (sys.executable, "-m", "pytest", "-n0", "-q", "--collect-only", *options)
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("tests/") and "::" in line]


def test_only_tests_of_the_named_subjects_are_collected() -> None:
    found = collected("--subject=runs", "--subject=config")

    assert {subjects.subject_of(name) for name in found} == {"runs", "config"}


def test_an_unknown_subject_is_an_error() -> None:
    argv = (sys.executable, "-m", "pytest", "-n0", "--subject=nosuch")
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert done.returncode == 4
    assert "unknown subject nosuch; known: agent" in done.stderr


TESTS = """
import os, subprocess, sys
import pytest


def test_imports_it():
    import torch


def test_starts_what_imports_it():
    subprocess.run([sys.executable, "-c", "import torch"], check=True)


def test_starts_what_imports_it_and_says_nothing():
    subprocess.run([sys.executable, "-c", "import torch"], stderr=subprocess.DEVNULL)


def test_asks_whether_it_is_there():
    import importlib.util
    assert importlib.util.find_spec("torch") is not None


def test_brings_a_cluster_up():
    from testbed import testbed
    bed = getattr(testbed, "Test" + "bed")
    bed().up(1)


@pytest.mark.torch
def test_marked():
    import torch


@pytest.mark.slurm
def test_with_slurm():
    assert False
"""


def test_in_the_fast_tier_any_import_of_torch_fails_and_names_the_test(inner: Callable[..., Inner]) -> None:
    ini = "[pytest]\nmarkers =\n  torch: x\n  slurm: x\n  ssh: x\n  k8s: x\n  testbed: x\n"
    done = inner({"pytest.ini": ini, "test_some.py": TESTS}, "--tier=fast", "-rA", "-n0")

    assert done.code == 1
    assert "PASSED test_some.py::test_asks_whether_it_is_there" in done.text
    for name in ("test_imports_it", "test_starts_what_imports_it", "test_starts_what_imports_it_and_says_nothing"):
        assert f"ERROR test_some.py::{name} - Failed: torch was imported in the fast tier" in done.text
    assert (
        "torch is imported in the fast tier, by test_some.py::test_starts_what_imports_it: mark it `torch`" in done.text
    )
    assert (
        "FAILED test_some.py::test_brings_a_cluster_up - Failed: a cluster is brought up in the fast tier" in done.text
    )
    assert "test_marked" not in done.text
    assert "2 deselected" in done.lines[-1]
