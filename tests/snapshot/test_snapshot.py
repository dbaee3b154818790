"""Which files travel with a run, and that they arrive as they were."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import tarfile
from typing import TYPE_CHECKING

import pytest

from launcher.errors import SpecError
from launcher.payload import ignore, snapshot
from launcher.system import input_file

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.payload.snapshot import Snapshot

LIMIT = 10_000_000


def collect(directory: Path, limit_bytes: int = LIMIT, **more: object) -> Snapshot:
    return snapshot.collect(directory, limit_bytes=limit_bytes, **more)  # type: ignore[arg-type]


def write(directory: Path, **files: str) -> None:
    for name, text in files.items():
        write_one(directory, name, text)


def write_one(directory: Path, name: str, text: str = "x") -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def git(directory: Path, *args: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always")
    subprocess.run(("git", *who, "-C", str(directory), *args), check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    git(directory, "init", "--quiet")
    for name in ("train.py", "pkg/model.py", "gone.py"):
        write_one(directory, name)
    write_one(directory, ".gitignore", "*.ckpt\n/out/\n")
    git(directory, "add", ".")
    git(directory, "commit", "--quiet", "-m", "first")
    return directory


def names(found: Snapshot) -> list[str]:
    return [file.path for file in found.files]


def unpacked(found: Snapshot, directory: Path, *, compress: bool = False) -> Path:
    packed = io.BytesIO()
    found.write_tar(packed, compress=compress)
    packed.seek(0)
    with tarfile.open(fileobj=packed) as tar:
        tar.extractall(directory, filter="data")
    return directory


def test_git_decides_which_files_are_the_users_work(repository: Path) -> None:
    (repository / "gone.py").unlink()
    write_one(repository, "train.py", "changed, not committed")
    for name in ("new.py", "model.ckpt", "out/log", "pkg/__pycache__/model.pyc", "env/pyvenv.cfg", "env/lib/a.py"):
        write_one(repository, name)

    found = collect(repository)

    assert names(found) == [".gitignore", "new.py", "pkg/model.py", "train.py"]
    assert found.total_bytes == len("changed, not committed") + 1 + 1 + len("*.ckpt\n/out/\n")
    assert names(collect(repository / "pkg")) == ["model.py"]
    assert "out/log" in names(collect(repository, also=["./out/log"]))
    assert names(collect(repository / "out")) == ["log"], "git ignores the directory: it cannot tell what in it matters"


def test_variables_of_another_repositorys_hook_are_ignored(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))

    assert "train.py" in names(collect(repository))


def test_submodules_come_along_and_those_not_checked_out_are_named(repository: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init", "--quiet")
    write_one(inner, "lib.py")
    git(inner, "add", ".")
    git(inner, "commit", "--quiet", "-m", "lib")
    for name in ("deps/inner", "deps/absent"):
        git(repository, "submodule", "--quiet", "add", str(inner), name)
    git(repository, "submodule", "--quiet", "deinit", "--force", "deps/absent")

    found = collect(repository)

    assert "deps/inner/lib.py" in names(found)
    assert found.warnings == ("the submodule deps/absent is not checked out here: none of its files are sent",)


def test_an_error_of_git_is_reported(repository: Path) -> None:
    (repository / ".git" / "index").write_bytes(b"broken")

    with pytest.raises(SpecError, match=r"git .* in .*index file"):
        collect(repository)


@pytest.mark.parametrize("has_git", [True, False])
def test_without_a_repository_all_files_are_taken_except_environments_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_git: bool
) -> None:
    if not has_git:
        monkeypatch.setenv("PATH", str(tmp_path))
    directory = tmp_path / "plain"
    kept = ["a.py", "data/b.txt", "runsheet/c.txt"]
    for name in [
        *kept,
        "data/__pycache__/b.pyc",
        ".venv/lib/x.py",
        "env/pyvenv.cfg",
        "env/x",
        ".git-like",
        "runs/one/stream",
    ]:
        write_one(directory, name)

    assert names(collect(directory, leave_out=[directory / "runs"])) == [".git-like", *kept]


@pytest.mark.parametrize("compress", [False, True])
def test_what_arrives_is_what_was_there(tmp_path: Path, compress: bool) -> None:
    directory = tmp_path / "work"
    odd = os.fsdecode(b"sub/line\nbreak \xff'\"$")
    write(directory, odd="", **{odd: "odd", "empty": "", "big": "z" * 3_000_000})
    write_one(directory, "run.sh", "#!/bin/sh\n").chmod(0o755)
    (directory / "sub" / "inside").symlink_to("../run.sh")
    (directory / "absolute").symlink_to(directory / "sub")
    (directory / "dangling").symlink_to("not-yet")

    found = collect(directory)
    copies = [unpacked(found, tmp_path / "tar", compress=compress), tmp_path / "copy"]
    found.copy_to(copies[1])

    for copy in copies:
        again = collect(copy)
        assert again.digest == found.digest
        assert names(again) == names(found)
        assert (copy / odd).read_text() == "odd"
        assert os.access(copy / "run.sh", os.X_OK)
        assert not os.access(copy / "big", os.X_OK)
        assert os.readlink(copy / "sub/inside") == "../run.sh"
        assert os.readlink(copy / "absolute") == "sub"


def test_the_tar_depends_on_the_contents_alone(tmp_path: Path) -> None:
    packed: list[bytes] = []
    for name, order in (("one", ("a", "b/c")), ("two", ("b/c", "a"))):
        directory = tmp_path / name
        for file in order:
            os.utime(write_one(directory, file), (len(packed), 1))
        buffer = io.BytesIO()
        collect(directory).write_tar(buffer, compress=True)
        packed.append(buffer.getvalue())
    before = collect(tmp_path / "one").digest

    assert packed[0] == packed[1]
    (tmp_path / "one" / "a").chmod(0o755)
    assert collect(tmp_path / "one").digest != before


def test_links_that_lead_out_of_the_directory_are_kept_followed_or_refused(tmp_path: Path) -> None:
    directory = tmp_path / "work"
    write_one(directory, "a.py")
    write(tmp_path / "data", **{"x/y": "y", "z": "z"})
    (tmp_path / "data/to-z").symlink_to("z")
    (directory / "data").symlink_to(tmp_path / "data")
    (directory / "up").symlink_to("../data/z")
    (directory / "hop").symlink_to("data")
    (directory / "sub").mkdir()
    (directory / "sub/in").symlink_to("../a.py")

    kept = collect(directory)
    follows = collect(directory, links="follow")
    followed = unpacked(follows, tmp_path / "followed")
    (directory / "gone").symlink_to("../nothing")

    real = str(tmp_path / "data")
    outside = {"data": real, "up": f"{real}/z", "hop": "data"}
    assert {file.path: file.link for file in kept.files} == {"a.py": None, "sub/in": "../a.py", **outside}
    (said,) = kept.warnings
    assert f"data -> {real}, hop -> data, up -> ../data/z; --links follow" in said
    assert collect(directory, same_disk=True).warnings == ()
    assert (followed / "up").read_text() == (followed / "hop/z").read_text() == (followed / "data/z").read_text() == "z"
    assert (followed / "data/x/y").read_text() == "y"
    assert not any((followed / name).is_symlink() for name in ("data", "up", "hop", "data/to-z"))
    assert follows.warnings[0].endswith("not sent: data/to-z, hop/to-z")
    with pytest.raises(SpecError, match=r"links lead out of .*: data -> .*, gone -> \.\./nothing, hop -> data, up -> "):
        collect(directory, links="refuse")
    with pytest.raises(SpecError, match="gone cannot be read: No such file"):
        collect(directory, links="follow")


def test_a_link_to_credentials_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path, **{"work/a.py": "", "home/.ssh/id_rsa": "key"})
    (tmp_path / "work/key").symlink_to("../home/.ssh/id_rsa")

    assert names(collect(tmp_path / "work")) == ["a.py", "key"]
    with pytest.raises(SpecError, match="key"):
        collect(tmp_path / "work", links="follow")


def test_a_snapshot_that_is_too_large_is_refused_with_its_largest_entries(tmp_path: Path) -> None:
    write(tmp_path, **{"data/a": "x" * 3000, "data/b": "x" * 3000, "model": "x" * 4000, "train.py": "x"})

    with pytest.raises(SpecError) as caught:
        collect(tmp_path, 5000)

    assert "10 KB, and at most 5 KB" in caught.value.message
    assert "data/ 6 KB, model 4 KB, train.py 1 B" in caught.value.message
    assert ".gitignore" in str(caught.value.hint)
    assert "--snapshot-limit" in str(caught.value.hint)


def test_what_is_not_a_file_is_left_out_and_reported(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "socket"))
        found = collect(tmp_path)

    assert found.files == ()
    assert [line.split()[0] for line in found.warnings] == ["pipe", "socket"]


def test_a_file_that_changes_is_noticed_and_one_that_grows_is_taken_as_it_was(tmp_path: Path) -> None:
    log = write_one(tmp_path / "work", "log", "one\n")
    found = collect(tmp_path / "work")
    with log.open("a") as file:
        file.write("two\n")

    assert (unpacked(found, tmp_path / "tar") / "log").read_text() == "one\n"
    for text in ("ONE\n", "o"):
        log.write_text(text)
        with pytest.raises(SpecError, match="log changed while it was read"):
            found.write_tar(io.BytesIO())
        with pytest.raises(SpecError, match="log changed while it was read"):
            found.copy_to(tmp_path / f"copy {len(text)}")


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_one(tmp_path, "secret.py")
    real = input_file.open_below

    def refuse(directory: Path, name: str) -> int:
        if name == "secret.py":
            raise PermissionError(13, "Permission denied")
        return real(directory, name)

    monkeypatch.setattr("launcher.system.input_file.open_below", refuse)
    with pytest.raises(SpecError, match=r"secret\.py cannot be read: Permission denied"):
        collect(tmp_path)


def test_distlaunchignore_leaves_out_what_git_would_send_and_sends_what_names_leave_out(tmp_path: Path) -> None:
    directory = tmp_path / "work"
    write(directory, **{"a.py": "", "big/x.bin": "x", "big/keep.txt": "", "data/x": "x" * (ignore.LARGE_BYTES + 1)})
    write(
        directory, **{"src/data/x": "", "wandb/run/log": "log", "notes.log": "", ".mypy_cache/x": "", "outputs/y": ""}
    )

    limit = 3 * ignore.LARGE_BYTES
    by_name = collect(directory, limit)
    (directory / ".distlaunchignore").write_text("big/*\n!big/keep.txt\n*.log\n!wandb/\n")
    by_file = collect(directory, limit)
    git(directory, "init")
    with_git = collect(directory, limit)
    (directory / ".distlaunchignore").write_text("a\n[z-a]\n!\n")
    with pytest.raises(SpecError, match=r"\.distlaunchignore: "):
        collect(directory)

    assert names(by_name) == ["a.py", "big/keep.txt", "big/x.bin", "notes.log", "outputs/y", "src/data/x"]
    assert by_name.warnings == ("not sent: data/ (20 MB), wandb/ (3 B); a line !data/ in .distlaunchignore sends it",)
    kept = [".distlaunchignore", "a.py", "big/keep.txt", "outputs/y", "src/data/x", "wandb/run/log"]
    assert names(by_file) == kept
    assert names(with_git) == sorted([*kept, ".mypy_cache/x", "data/x"])
