"""A working folder in which others may write: what they swap in is not sent, and nothing of theirs is run."""

from __future__ import annotations

import io
import os
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from launcher import input_file, snapshot
from launcher.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STRANGER = 54321
PRIVATE = "what nobody else may read"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")


def collect(folder: Path, **more: Any) -> snapshot.Snapshot:
    return snapshot.collect(folder, limit_bytes=10_000_000, **more)


def sent(found: snapshot.Snapshot) -> bytes:
    packed = io.BytesIO()
    found.write_tar(packed)
    return packed.getvalue()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The working folder, and beside it a file and a folder that are private."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private/x").write_text(PRIVATE)
    folder = tmp_path / "work"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.py", "sub/x"):
        (folder / name).write_text("." * len(PRIVATE))
    return folder


def a_file(work: Path) -> None:
    (work / "sub/x").unlink()
    (work / "sub/x").symlink_to("../../private/x")


def a_folder(work: Path) -> None:
    (work / "sub").rename(work / "old")
    (work / "sub").symlink_to("../private")


def a_way_to_a_folder(work: Path) -> None:
    (work / "sub").rename(work / "old")
    (work / "deep").mkdir()
    (work / "deep/er").symlink_to("../../private")
    (work / "sub").symlink_to("deep/er")


@pytest.mark.parametrize("swap", [a_file, a_folder, a_way_to_a_folder])
@pytest.mark.parametrize("when", ["while the names are known", "before it is read", "before it is sent"])
def test_nothing_is_read_through_a_link_that_came_later(
    work: Path, when: str, swap: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if when == "while the names are known":

        def listed(*_: object, **__: object) -> tuple[set[bytes], list[str]]:
            swap(work)
            return {b"a.py", b"sub/x"}, []

        monkeypatch.setattr(snapshot, "listed", listed)
    if when == "before it is read":
        monkeypatch.setattr(snapshot, "_check_size", lambda *_: swap(work))
    if when == "before it is read":
        with pytest.raises(SpecError, match="sub/x cannot be read"):
            collect(work, keep_outside_links=True)
        return
    found = collect(work, keep_outside_links=True)
    if when == "while the names are known":
        assert [file.path for file in found.files if file.link is None] == ["a.py"]
        assert PRIVATE.encode() not in sent(found)
        return
    swap(work)
    with pytest.raises(SpecError, match="sub/x cannot be read"):
        sent(found)


def test_a_link_that_is_swapped_while_it_is_looked_at_is_named(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "link").symlink_to("a.py")

    def readlink(*_: Any, **__: Any) -> str:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "readlink", readlink)
    with pytest.raises(SpecError, match="link cannot be read: Invalid argument"):
        collect(work)


def test_nothing_is_sent_while_somebody_swaps_all_the_time(work: Path) -> None:
    pid = os.fork()
    if not pid:
        try:
            (work / "file").write_text("." * len(PRIVATE))
            (work / "link").symlink_to("../private/x")
            while os.getppid() != 1:
                for name in ("link", "file"):
                    os.link(work / name, work / "next", follow_symlinks=False)
                    os.rename(work / "next", work / "sub/x")
        finally:
            os._exit(0)
    try:
        for _ in range(200):
            try:
                found = collect(work, keep_outside_links=True)
                data = sent(found)
            except SpecError:
                continue
            assert PRIVATE.encode() not in data
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_a_script_that_is_named_by_a_link_in_the_folder_comes_along(work: Path) -> None:
    (work / "short").symlink_to("sub")

    found = collect(work, also=["short/x"])

    assert [file.path for file in found.files] == ["a.py", "short", "sub/x"]
    with tarfile.open(fileobj=io.BytesIO(sent(found))) as tar:
        assert tar.getnames() == ["a.py", "short", "sub/x"]


@as_root
def test_files_of_somebody_else_where_everybody_may_put_some_are_told(work: Path) -> None:
    os.chown(work / "a.py", STRANGER, STRANGER)
    assert collect(work).warnings == (), "in a folder of one's own it was the user who took it"
    work.chmod(0o1777)
    (warning,) = collect(work).warnings
    assert warning == "not yours, and in a folder that everybody may write to: a.py; taken along all the same"
    os.chown(work / "a.py", os.getuid(), 0)
    assert collect(work).warnings == ()


def test_a_device_is_not_even_opened(work: Path) -> None:
    os.mkfifo(work / "pipe")
    for name in ("pipe", "sub", "none"):
        with pytest.raises(OSError, match=r"."):
            input_file.open_below(work, name)
