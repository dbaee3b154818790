"""Files and directories that another program removes while they are collected."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from launcher.errors import SpecError
from launcher.payload import snapshot

if TYPE_CHECKING:
    from pathlib import Path


def collect(directory: Path) -> snapshot.Snapshot:
    return snapshot.collect(directory, limit_bytes=10_000)


def test_a_file_that_vanishes_after_it_was_seen_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ckpt-100.pt", "train.py"):
        (tmp_path / name).write_text("x")
    monkeypatch.setattr(snapshot, "_check_size", lambda *_: (tmp_path / "ckpt-100.pt").unlink())

    assert [file.path for file in collect(tmp_path).files] == ["train.py"]


def test_a_directory_that_vanishes_before_it_is_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "train.py").write_text("x")
    scandir = os.scandir

    def scan(path: Any) -> Any:
        if path == os.fsencode(tmp_path / "old"):
            (tmp_path / "old").rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)

    assert [file.path for file in collect(tmp_path).files] == ["train.py"]


def test_a_file_that_vanishes_before_it_is_copied_has_changed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x")
    taken = collect(tmp_path)
    (tmp_path / "train.py").unlink()

    with pytest.raises(SpecError, match="changed while it was read"):
        taken.copy_to(tmp_path / "copy")
