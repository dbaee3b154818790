"""Runs with roles from a Python program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import distlaunch
from launcher.service import request

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


def test_what_was_asked_for_can_be_asked_for_again_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `move` does, from the run's record."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").touch()
    (tmp_path / "run.toml").write_text('[roles.one]\nnodes = 1\nscript = "a.py"\n', encoding="utf-8")

    first = request.resolve("local", {"script": None, "roles": "run.toml", "detach": True})
    again = request.resolve("local", {**first.given, "detach": True})

    assert [role.name for role in again.job.roles] == ["one"]
    assert again.job.command == first.job.command == ("a.py",)
