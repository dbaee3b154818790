"""A working directory that other users can write to: what they swap in is not sent, and nothing of theirs is run."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from launcher.errors import SpecError
from launcher.payload import snapshot
from launcher.system import input_file, trust

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.command import Cli

STRANGER = 54321
PRIVATE = "what nobody else may read"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")


def collect(directory: Path, **more: Any) -> snapshot.Snapshot:
    return snapshot.collect(directory, limit_bytes=10_000_000, **more)


def sent(found: snapshot.Snapshot) -> bytes:
    packed = io.BytesIO()
    found.write_tar(packed)
    return packed.getvalue()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The working directory, and beside it a file and a directory that are private."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private/x").write_text(PRIVATE)
    directory = tmp_path / "work"
    (directory / "sub").mkdir(parents=True)
    for name in ("a.py", "sub/x"):
        (directory / name).write_text("." * len(PRIVATE))
    return directory


def a_file(work: Path) -> None:
    (work / "sub/x").unlink()
    (work / "sub/x").symlink_to("../../private/x")


def a_directory(work: Path) -> None:
    (work / "sub").rename(work / "old")
    (work / "sub").symlink_to("../private")


def a_way_to_a_directory(work: Path) -> None:
    (work / "sub").rename(work / "old")
    (work / "deep").mkdir()
    (work / "deep/er").symlink_to("../../private")
    (work / "sub").symlink_to("deep/er")


@pytest.mark.parametrize("swap", [a_file, a_directory, a_way_to_a_directory])
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
            collect(work, same_disk=True)
        return
    found = collect(work, same_disk=True)
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


def test_nothing_private_is_sent_while_files_are_swapped_all_the_time(work: Path) -> None:
    (work / "file").write_text("." * len(PRIVATE))
    (work / "link").symlink_to("../../private/x")
    pid = os.fork()
    if not pid:
        try:
            while os.getppid() != 1:
                for name in ("link", "file"):
                    os.link(work / name, work / "next", follow_symlinks=False)
                    os.rename(work / "next", work / "sub/x")
        finally:
            os._exit(0)
    try:
        taken = refused = 0
        while taken + refused < 200 or not (taken and refused):
            try:
                data = sent(collect(work, same_disk=True))
                taken += 1
            except SpecError:
                refused += 1
                continue
            assert PRIVATE.encode() not in data
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_a_script_that_is_named_by_a_link_in_the_directory_comes_along(work: Path) -> None:
    (work / "short").symlink_to("sub")

    found = collect(work, also=["short/x"])

    assert [file.path for file in found.files] == ["a.py", "short", "sub/x"]
    with tarfile.open(fileobj=io.BytesIO(sent(found))) as tar:
        assert tar.getnames() == ["a.py", "short", "sub/x"]


@as_root
def test_other_users_files_in_a_directory_that_anyone_may_write_to_are_reported(work: Path) -> None:
    os.chown(work / "a.py", STRANGER, STRANGER)
    assert collect(work).warnings == (), "in the user's own directory, the user has taken it"
    work.chmod(0o1777)
    (warning,) = collect(work).warnings
    assert warning == "not yours, and in a directory that anyone may write to: a.py; sent anyway"
    os.chown(work / "a.py", os.getuid(), 0)
    assert collect(work).warnings == ()


def test_a_device_is_not_even_opened(work: Path) -> None:
    os.mkfifo(work / "pipe")
    for name in ("pipe", "sub", "none"):
        with pytest.raises(OSError, match=r"."):
            input_file.open_below(work, name)


EVIL = (
    "core.fsmonitor",
    "core.hooksPath",
    "core.sshCommand",
    "core.gitProxy",
    "core.editor",
    "core.pager",
    "diff.external",
)


def repository(directory: Path, ran: Path, uid: int) -> None:
    """A repository with an ignored file, and with all settings that name programs."""
    program = directory / ".git/evil"
    subprocess.run(["git", "init", "--quiet", str(directory)], check=True)
    (directory / ".gitignore").write_text("ignored\n")
    subprocess.run(["git", "-C", str(directory), "add", "."], check=True)
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    for name in EVIL:
        subprocess.run(["git", "-C", str(directory), "config", name, str(program)], check=True)
    for path in (directory / ".git", *(directory / ".git").rglob("*")):
        os.lchown(path, uid, uid)


@as_root
@pytest.mark.parametrize("safe", [False, True], ids=["as git is", "after git's advice was followed"])
@pytest.mark.parametrize("where", ["above", "here", "below", "by a link", "by a file"])
def test_a_strangers_repository_is_ignored_and_nothing_of_it_runs(
    tmp_path: Path, where: str, safe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, ran = tmp_path / "shared", tmp_path / "ran"
    work = shared / "work"
    work.mkdir(parents=True)
    (work / "x.py").write_text("x")
    theirs = {"above": shared, "here": work, "below": work / "sub"}.get(where, tmp_path / "theirs")
    if where == "below":
        repository(work, ran, 0)
    repository(theirs, ran, STRANGER)
    (work / "ignored").write_text("x")
    if where == "by a link":
        (work / ".git").symlink_to(theirs / ".git")
    elif where == "by a file":
        (work / ".git").write_text(f"gitdir: {theirs}/.git\n")
    if where == "below":
        (work / "sub/ignored").write_text("x")
    monkeypatch.setenv("HOME", str(tmp_path))
    if safe:
        subprocess.run(["git", "config", "--global", "--add", "safe.directory", "*"], check=True)

    root, found = snapshot.root(work), collect(work)

    assert not ran.exists()
    assert root == work
    ours = {"here": [".gitignore"], "below": [".gitignore", "sub/.gitignore", "sub/ignored"]}.get(where, [])
    assert [file.path for file in found.files] == sorted([*ours, *([] if where == "below" else ["ignored"]), "x.py"])
    (warning,) = found.warnings
    assert f"belongs to {STRANGER}" in warning
    assert "git config" not in warning
    assert "safe.directory" not in warning


def test_a_repository_of_ones_own_runs_nothing_either(work: Path, tmp_path: Path) -> None:
    """Its settings may have come with an archive."""
    repository(work, tmp_path / "ran", os.getuid())
    (work / "ignored").write_text("x")
    (work / "sub/ignored").write_text("x")

    assert [file.path for file in collect(work / "sub").files] == ["x"]
    assert snapshot.root(work / "sub") == work
    assert not (tmp_path / "ran").exists()


@as_root
def test_a_trusted_repository_counts_whatever_its_owner(work: Path, tmp_path: Path) -> None:
    repository(work, tmp_path / "ran", STRANGER)
    (work / "ignored").write_text("x")
    trust.except_for([str(work)])
    try:
        found = collect(work)
    finally:
        trust.except_for(())

    assert [file.path for file in found.files] == [".gitignore", "a.py", "sub/x"]
    assert found.warnings == ()
    assert not (tmp_path / "ran").exists()


def test_a_worktree_and_a_directory_with_a_colon_are_repositories(tmp_path: Path) -> None:
    main, other = tmp_path / "a:b", tmp_path / "c:d"
    repository(main, tmp_path / "ran", os.getuid())
    who = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
    for words in (("commit", "--quiet", "-m", "x"), ("worktree", "add", "--quiet", "-b", "other", str(other))):
        subprocess.run(["git", *who, "-C", str(main), *words], check=True, capture_output=True)
    for directory in (main, other):
        (directory / "ignored").write_text("x")
        (directory / "deep").mkdir()
        assert [file.path for file in collect(directory).files] == [".gitignore"]
        assert snapshot.root(directory / "deep") == directory


@as_root
@pytest.mark.parametrize(
    "how",
    [("k8s", "--image", "x"), ("slurm", "--nodes", "1", "--snapshot", "--python", "python3")],
    ids=lambda how: how[0],
)
def test_each_backend_that_sends_files_reports_a_strangers_repository_once(
    distlaunch: Cli, how: tuple[str, ...]
) -> None:
    work = distlaunch.write("work/x.py", "").parent
    repository(distlaunch.directory, distlaunch.directory / "ran", STRANGER)

    done = distlaunch(*how, "--dry-run", "x.py", cwd=work)

    assert done.exit_code == 0, done
    assert done.stderr.count("ignoring an untrusted git repository") == 1, done.stderr
    assert not (distlaunch.directory / "ran").exists()
