"""`scripts/matrix`: what it reads, and what it writes into the docs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import matrix

ROOT = Path(__file__).parents[1]
RAN = [
    matrix.Result("torch-2.4", "torch 2.4.1, Python 3.11.7", matrix.Counts(40, 0, 1), day="2026-11-23"),
    matrix.Result("python-3.9", "", None, "no Python 3.9 on this host", "2026-11-23"),
]


def test_counts_are_those_of_the_report_of_pytest(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite tests="9" failures="1" errors="2" skipped="3"/></testsuites>')

    assert matrix.counted(report) == (3, 3, 3)
    assert matrix.counted(tmp_path / "none.xml").failed, "a pytest that was killed is no success"


def test_cells_that_did_not_run_keep_their_last_result() -> None:
    page = matrix.written(f"about\n{matrix._BEGIN}\n{matrix._END}\nmore\n", RAN)
    again = matrix.written(page, [RAN[0]._replace(counts=matrix.Counts(41, 2, 0))])

    assert "| torch-2.4 | torch 2.4.1, Python 3.11.7 | 40 | 0 | 1 | 2026-11-23 |" in page
    assert "| python-3.9 |  | no Python 3.9 on this host | | | 2026-11-23 |" in page
    assert again.count("| torch-2.4 |") == 1
    assert "| 41 | 2 | 0 |" in again
    assert "no Python 3.9" in again
    assert (again.startswith("about\n"), again.endswith("more\n")) == (True, True)


@pytest.mark.parametrize(("counts", "bad"), [((3, 0, 0), False), ((3, 1, 0), True), ((0, 0, 3), True), (None, False)])
def test_a_cell_is_bad_where_a_test_failed_or_none_ran(counts: Any, bad: bool) -> None:
    assert matrix.Result("torch-2.6", "", counts and matrix.Counts(*counts)).is_bad is bad


def test_an_unknown_cell_lists_the_known_ones() -> None:
    done = subprocess.run([ROOT / "scripts/matrix", "torch-1.0"], capture_output=True, text=True, timeout=120)

    assert done.returncode == 2
    assert f"unknown cell torch-1.0; known are {', '.join(matrix.cells())}" in done.stderr


def test_a_python_of_pyenv_is_found_without_its_shims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version, says in (("3.9.18", "Python 3.9.18"), ("3.13.0", "Python 3.13.0"), ("3.90.1", "Python 3.90.1")):
        path = tmp_path / "versions" / version / "bin/python"
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\necho {says}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))

    assert matrix.interpreter("3.9", "false") == str(tmp_path / "versions/3.9.18/bin/python")
    with pytest.raises(matrix.Unavailable, match=r"no Python 3\.8 on this host"):
        matrix.interpreter("3.8", "false")


def test_the_page_has_results_of_known_cells_and_the_files_that_they_run_exist() -> None:
    listed = re.findall(r"^\| ((?:torch|python)-\S+) \|", matrix.PAGE.read_text("utf-8"), re.MULTILINE)

    assert listed == [cell for cell in matrix.cells() if cell in listed], "others, or in another order"
    for name in (*matrix._TORCH_TESTS, *matrix._PYTHON_TESTS):
        assert (ROOT / name).is_file(), name
