"""Files that git does not list for the directory itself: those of a submodule, and those that a link leads to."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from launcher.errors import SpecError
from launcher.payload import snapshot

if TYPE_CHECKING:
    from pathlib import Path


def collect(directory: Path, **more: Any) -> snapshot.Snapshot:
    return snapshot.collect(directory, limit_bytes=10_000, **more)


def git(directory: Path, *args: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always")
    subprocess.run(("git", *who, "-C", str(directory), *args), check=True, capture_output=True)


def test_what_is_left_out_of_a_submodule_whose_repository_is_gone_is_named(tmp_path: Path) -> None:
    for name in ("inner", "work"):
        (tmp_path / name / "wandb").mkdir(parents=True)
        (tmp_path / name / "a.py").touch()
        git(tmp_path / name, "init", "--quiet")
        git(tmp_path / name, "add", "a.py")
        git(tmp_path / name, "commit", "--quiet", "-m", "first")
    work = tmp_path / "work"
    git(work, "submodule", "--quiet", "add", str(tmp_path / "inner"), "lib")
    (work / "lib/.git").write_text(f"gitdir: {tmp_path}/gone\n")
    (work / "lib/wandb").mkdir()
    (work / "lib/wandb/log").write_text("log")

    found = collect(work)

    assert [file.path for file in found.files] == [".gitmodules", "a.py", "lib/a.py"]
    assert found.warnings == ("in lib: not sent: wandb/ (3 B); a line !wandb/ in .distlaunchignore sends it",)


def test_other_worktrees_and_repositories_in_virtual_environments_are_not_sent(tmp_path: Path) -> None:
    for name in ("venv/src/lib", "vendored", "."):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "a.py").touch()
        git(tmp_path / name, "init", "--quiet")
        git(tmp_path / name, "add", "a.py")
        git(tmp_path / name, "commit", "--quiet", "-m", "first")
    (tmp_path / "venv/pyvenv.cfg").touch()
    git(tmp_path, "worktree", "add", "--quiet", ".worktrees/feature")

    found = collect(tmp_path)

    assert [file.path for file in found.files] == ["a.py", "vendored/a.py"]
    assert found.warnings == (
        ".worktrees/feature is another worktree of the same repository: none of its files are sent",
    )
    inside = collect(tmp_path / ".worktrees/feature")
    assert ([file.path for file in inside.files], inside.warnings) == (["a.py"], ())


@pytest.mark.parametrize(("error", "said"), [(FileNotFoundError, ""), (PermissionError, "data/gone cannot be read: x")])
def test_a_file_that_a_link_leads_to_may_vanish_and_is_named_if_it_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError], said: str
) -> None:
    for name in ("work", "real"):
        (tmp_path / name).mkdir()
    for name in ("gone", "kept"):
        (tmp_path / "real" / name).touch()
    (tmp_path / "work/data").symlink_to(tmp_path / "real")
    real = os.stat

    def stat(path: Any, **how: Any) -> os.stat_result:
        if str(path).endswith("gone"):
            raise error(1, "x")
        return real(path, **how)

    monkeypatch.setattr("launcher.payload.snapshot_links.os.stat", stat)
    if said:
        with pytest.raises(SpecError, match=said):
            collect(tmp_path / "work", links="follow")
    else:
        assert [file.path for file in collect(tmp_path / "work", links="follow").files] == ["data/kept"]
