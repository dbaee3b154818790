"""Runs with roles from a Python program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import distlaunch

if TYPE_CHECKING:
    from pathlib import Path


def test_a_run_file_takes_the_place_of_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("import os; print('in', os.environ['DISTLAUNCH_ROLE'])", encoding="utf-8")
    (tmp_path / "run.toml").write_text(
        '[roles.one]\nnodes = 1\nscript = "a.py"\n[roles.two]\nnodes = 1\nscript = "a.py"\n', encoding="utf-8"
    )

    run = distlaunch.submit(roles="run.toml", runs_dir=tmp_path / "runs")

    assert run.wait(60).ok
    assert sorted(line.text for line in run.logs()) == ["in one", "in two"]


def test_without_a_script_and_without_roles_nothing_starts(tmp_path: Path) -> None:
    with pytest.raises(distlaunch.SpecError, match="no script given"):
        distlaunch.submit(runs_dir=tmp_path / "runs")
