"""What `--render-to` writes: only where no other user can change it before it is run, and through no foreign link."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from launcher.backends import _writing
from launcher.errors import StorageError, UntrustedError
from launcher.system import storage
from tests.config.owners import as_root, owned

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

STRANGER = 54321
COMMANDS = {
    "local": ("local", "x.py"),
    "ansible": ("ansible", "--inventory", "n1,", "x.py"),
    "slurm": ("slurm", "--nodes", "2", "reduce.py"),
    "k8s": ("k8s", "--image", "img", "--nodes", "2", "reduce.py"),
}


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file of the user's that is not to be overwritten."""
    path = tmp_path / "precious"
    path.write_text("precious")
    path.chmod(0o640)
    return path


@as_root
@pytest.mark.parametrize("backend", COMMANDS)
@pytest.mark.parametrize("whose", ["a stranger's", "everybody's", "a sticky one"])
def test_a_directory_that_others_can_write_to_is_refused(
    distlaunch: Cli, precious: Path, backend: str, whose: str
) -> None:
    distlaunch.write("x.py", "")
    out = distlaunch.directory / "out"
    modes = {"a stranger's": (STRANGER, 0o755), "everybody's": (0, 0o777), "a sticky one": (0, 0o1777)}
    owned(out, *modes[whose])
    for name in ("key", "start.sh", "agent.pyz", "run.yaml", "job.sbatch", "spec.json", "payload"):
        (out / name).symlink_to(precious)
    before = sorted(os.listdir(out))

    done = distlaunch(*COMMANDS[backend][:1], "--render-to", str(out), *COMMANDS[backend][1:])

    assert done.exit_code == 2, done
    assert f"error[untrusted]: --render-to '{out}': " in done.stderr
    assert sorted(os.listdir(out)) == before
    assert precious.read_text() == "precious"
    assert stat.S_IMODE(precious.stat().st_mode) == 0o640


@as_root
def test_nothing_is_written_through_a_strangers_link_or_below_a_strangers_directory(
    distlaunch: Cli, tmp_path: Path
) -> None:
    distlaunch.write("x.py", "")
    mine = owned(tmp_path / "mine", 0, 0o700)
    sticky = owned(tmp_path / "sticky", 0, 0o1777)
    (sticky / "out").symlink_to(mine)
    os.lchown(sticky / "out", STRANGER, STRANGER)
    theirs = owned(tmp_path / "theirs", STRANGER, 0o755)
    for out in (sticky / "out", sticky / "out/deeper", theirs / "new/deeper"):
        assert distlaunch("local", "--render-to", str(out), "x.py").exit_code == 2
    assert [*mine.iterdir(), *theirs.iterdir()] == []


@pytest.mark.parametrize("backend", COMMANDS)
def test_a_rendered_directory_is_filled_again_and_no_link_in_it_is_followed(
    distlaunch: Cli, tmp_path: Path, precious: Path, backend: str
) -> None:
    distlaunch.write("x.py", "")
    out = distlaunch.directory / "out"
    command = (*COMMANDS[backend][:1], "--render-to", str(out), *COMMANDS[backend][1:])
    before = os.umask(0o022)
    try:
        assert distlaunch(*command).exit_code == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    written = [path for path in out.rglob("*") if path.is_file()]
    (out / "mine").write_text("of mine")
    marks = {}
    for path in written:
        if path.name in (
            "spec.json",
            "job.json",
            "start.sh",
            "job.sbatch",
            "run.yaml",
        ):  # else it would not count as ours
            marks[path.rename(tmp_path / path.name)] = path
        path.unlink(missing_ok=True)
        path.symlink_to(tmp_path / path.name if path in marks.values() else precious)
    texts = {path: path.read_bytes() for path in marks}

    done = distlaunch(*command)

    assert done.exit_code == 0, done
    assert precious.read_text() == "precious"
    assert {path: path.read_bytes() for path in marks} == texts
    assert (out / "mine").read_text() == "of mine"
    assert [path for path in written if path.is_symlink()] == []
    secrets = [out / name for name in ("run.yaml", "key") if (out / name).exists()]
    assert [stat.S_IMODE(path.stat().st_mode) for path in secrets] == [0o600] * (backend != "ansible")


@pytest.mark.parametrize("backend", COMMANDS)
def test_a_directory_with_other_files_is_refused_and_nothing_in_it_is_changed(distlaunch: Cli, backend: str) -> None:
    distlaunch.write("x.py", "")
    others = {
        "key": "mine",
        "start.sh": "mine",
        "spec.json": '{"run": "mine"}',
        "job.sbatch": "mine",
        "run.yaml": "# Run mine",
    }
    for name, text in others.items():
        distlaunch.write(f"out/{name}", text)
    command, *rest = COMMANDS[backend]

    done = distlaunch(command, "--render-to", "out", *rest)

    assert (done.exit_code, done.stdout) == (2, "")
    assert "error[bad_spec]: --render-to 'out' holds other files: job.sbatch, key, run.yaml and 2 more" in done.stderr
    assert {path.name: path.read_text() for path in (distlaunch.directory / "out").iterdir()} == others
    for name in others:
        (distlaunch.directory / "out" / name).unlink()
    assert distlaunch(command, "--render-to", "out", *rest).exit_code == 0, "an empty one is filled"
    another = next(name for name in COMMANDS if name != backend)
    assert distlaunch(another, "--render-to", "out", *COMMANDS[another][1:]).exit_code == 2, (
        "but not for another backend"
    )


@pytest.mark.parametrize("backend", COMMANDS)
def test_all_files_that_are_written_are_listed(distlaunch: Cli, backend: str) -> None:
    distlaunch.write("x.py", "")
    command, *rest = COMMANDS[backend]
    for directory, more in (("out", ()), ("again", ("--output", "json"))):
        done = distlaunch(command, "--render-to", directory, *more, *rest)
        found = {
            os.path.relpath(path, distlaunch.directory)
            for path in (distlaunch.directory / directory).rglob("*")
            if path.is_file()
        }
        listed = done.json["result"]["written"] if more else done.stdout.splitlines()
        assert (set(listed), len(listed)) == (found, len(found))


@pytest.mark.parametrize("backend", COMMANDS)
def test_whom_the_run_that_was_there_before_told_is_not_told_of_this_one(distlaunch: Cli, backend: str) -> None:
    distlaunch.write("x.py", "")
    command, *rest = COMMANDS[backend]
    hook = "http://127.0.0.1:9/hook"
    for more in (("--notify", hook), ()):
        assert distlaunch(command, "--render-to", "out", *more, *rest).exit_code == 0
        files = [path for path in (distlaunch.directory / "out").rglob("*") if path.is_file()]
        told = [path.name for path in files if b"aHR0c" in path.read_bytes() or hook.encode() in path.read_bytes()]
        assert bool(told) == bool(more), told


@pytest.mark.parametrize("backend", COMMANDS)
@pytest.mark.parametrize("flag", ["--dry-run", "--detach"])
def test_it_excludes_flags_that_write_nothing_or_start_something(distlaunch: Cli, backend: str, flag: str) -> None:
    distlaunch.write("x.py", "")
    command, *rest = COMMANDS[backend]

    done = distlaunch(command, "--render-to", "out", flag, *rest)

    assert (done.exit_code, done.stdout) == (2, "")
    assert f"error[bad_spec]: --render-to and {flag} exclude each other" in done.stderr
    assert os.listdir(distlaunch.directory) == ["x.py"]


@as_root
def test_a_strangers_directory_inside_is_not_written_to(tmp_path: Path) -> None:
    inner = owned(tmp_path / "payload", STRANGER, 0o755)
    with pytest.raises(UntrustedError):
        _writing.write_files(tmp_path, {"payload/x.py": b""})
    assert os.listdir(inner) == []


def test_no_link_is_followed_where_files_cannot_be_renamed(precious: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = precious.parent / "key"
    link.symlink_to(precious)

    def replace(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(StorageError):
        storage.write_whole(link, b"new")
    assert precious.read_text() == "precious"
    storage.write_whole(precious, b"secret", mode=0o600)
    assert stat.S_IMODE(precious.stat().st_mode) == 0o600
