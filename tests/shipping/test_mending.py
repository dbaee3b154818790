"""What an environment has lost while no run used it comes back, and what a run has installed stays."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from testbed.running import Running
from tests.shipping import environments

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.command import Cli


def removed_for_its_age(brought: Path) -> None:
    """As by systemd-tmpfiles: a source that has bytecode is never read, nor are the contents, by their other names."""
    (module,) = brought.glob("lib/python*/site-packages/brought.py")
    module.unlink()
    (brought / "bin/python").unlink()
    shutil.rmtree(brought.parents[2] / "objects")


def cut_off(brought: Path) -> None:
    """As by a power loss: it is one file with the content that is kept."""
    (module,) = brought.glob("lib/python*/site-packages/brought.py")
    module.chmod(0o644)
    times = module.stat()
    os.truncate(module, 3)
    os.utime(module, ns=(times.st_atime_ns, times.st_mtime_ns))
    (brought / "bin/tool").write_bytes(b"")


@pytest.mark.parametrize("damage", [removed_for_its_age, cut_off])
def test_what_an_environment_has_lost_comes_back_with_the_next_run(
    distlaunch: Cli, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    source = environments.venv(tmp_path / "source")
    distlaunch.write("x.py", environments.SCRIPT)
    command = (
        "local",
        "--nodes",
        "2",
        "--log-ranks",
        "all",
        "--env-ship",
        str(source),
        "--env-ship-dir",
        str(tmp_path / "store"),
        "x.py",
    )
    first = distlaunch(*command)
    assert first.exit_code == 0, first
    (brought,) = (tmp_path / "store").glob("envs/*/env")
    before = {path: path.lstat().st_size for path in brought.rglob("*") if "__pycache__" not in path.parts}
    damage(brought)

    second = distlaunch(*command)

    assert second.exit_code == 0, second
    assert "rank 1: " in second.stdout
    assert {path: path.lstat().st_size for path in before} == before
    assert subprocess.check_output([brought / "bin/tool"], text=True).startswith(str(brought))


def test_what_a_run_has_installed_stays(distlaunch: Cli, tmp_path: Path) -> None:
    source = environments.venv(tmp_path / "source")
    (packages,) = source.glob("lib/python*/site-packages")
    (packages / "brought-1.0.dist-info").mkdir()
    (packages / "brought-1.0.dist-info/METADATA").write_text("Name: brought\nVersion: 1.0\n")
    distlaunch.write("x.py", "from importlib import metadata\nimport brought\nprint(metadata.version('brought'))\n")
    command = ("local", "--env-ship", str(source), "--env-ship-dir", str(tmp_path / "store"), "x.py")
    assert "1.0" in distlaunch(*command).stdout
    (packages,) = (tmp_path / "store").glob("envs/*/env/lib/python*/site-packages")
    shutil.rmtree(packages / "brought-1.0.dist-info")
    (packages / "brought.py").unlink()
    (packages / "brought.py").write_text("WHERE = 'in the new version'\n")
    (packages / "brought-2.0.dist-info").mkdir()
    (packages / "brought-2.0.dist-info/METADATA").write_text("Name: brought\nVersion: 2.0\n")

    later = distlaunch(*command)

    assert later.stdout.split() == ["2.0"], later
    assert "new version" in (packages / "brought.py").read_text()


def may_be_removed(directory: Path) -> bool:
    """Whether systemd-tmpfiles would look into a directory for what is old: it needs an exclusive lock of it."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def test_nothing_of_the_store_is_removed_for_its_age_while_a_run_uses_it(distlaunch: Cli, tmp_path: Path) -> None:
    source = environments.venv(tmp_path / "source")
    os.mkfifo(distlaunch.directory / "go")
    distlaunch.write("x.py", "print('runs', flush=True)\nopen('go').read()\n")
    store = tmp_path / "store"
    command = ("local", "--env-ship", str(source), "--env-ship-dir", str(store), "x.py")
    with contextlib.closing(Running(distlaunch.start(*command))) as running:
        running.until("runs")
        assert not may_be_removed(store)
        (distlaunch.directory / "go").write_text("")
        assert running.end() == 0, running
    wait_until("the agent to release the store", lambda: may_be_removed(store))
