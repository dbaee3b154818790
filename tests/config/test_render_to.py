"""What `--render-to` writes: only where nobody else can change it before it is run, and through nobody's link."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from launcher import storage
from launcher.backends import _base
from launcher.errors import StorageError, UntrustedError
from tests.config.test_trust import as_root, owned

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

STRANGER = 54321
COMMANDS = {
    "local": ("local", "x.py"),
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
def test_a_folder_that_others_can_write_to_is_refused(distlaunch: Cli, precious: Path, backend: str, whose: str) -> None:
    distlaunch.write("x.py", "")
    out = distlaunch.folder / "out"
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
def test_a_link_of_a_strangers_or_a_folder_above_that_is_his_is_none_to_write_by(distlaunch: Cli, tmp_path: Path) -> None:
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
def test_ones_own_folder_is_filled_again_and_no_link_in_it_is_followed(distlaunch: Cli, precious: Path, backend: str) -> None:
    distlaunch.write("x.py", "")
    out = distlaunch.folder / "out"
    command = (*COMMANDS[backend][:1], "--render-to", str(out), *COMMANDS[backend][1:])
    before = os.umask(0o022)
    try:
        assert distlaunch(*command).exit_code == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    written = [path for path in out.rglob("*") if path.is_file()]
    (out / "mine").write_text("of mine")
    for path in written:
        path.unlink()
        path.symlink_to(precious)

    done = distlaunch(*command)

    assert done.exit_code == 0, done
    assert precious.read_text() == "precious"
    assert (out / "mine").read_text() == "of mine"
    assert [path for path in written if path.is_symlink()] == []
    secret = out / ("run.yaml" if backend == "k8s" else "key")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


@as_root
def test_a_strangers_folder_inside_is_not_written_to(tmp_path: Path) -> None:
    inner = owned(tmp_path / "payload", STRANGER, 0o755)
    with pytest.raises(UntrustedError):
        _base.write_files(tmp_path, {"payload/x.py": b""})
    assert os.listdir(inner) == []


def test_where_nothing_can_be_renamed_no_link_is_followed_either(precious: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
