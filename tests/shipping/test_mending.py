"""What an environment has lost while no run used it comes back, and what a run has installed stays."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from launcher.agent.system import flock
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
    for path, left in ((module, 3), (brought / "bin/tool", 0)):
        times = path.stat()
        os.truncate(path, left)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


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


PACKAGE = {
    "some_thing/__init__.py": "VERSION = '1.0'\n",
    "some_thing/dropped.py": "",
    "some.thing-1.0.dist-info/METADATA": "Name: some.thing\nVersion: 1.0\n",
    "some.thing-1.0.dist-info/licenses/LICENSE": "",
}
SHOWS = """from importlib import metadata, util
print(metadata.version("some-thing"), util.find_spec("some_thing.dropped"))
"""


def test_what_a_run_has_installed_stays(distlaunch: Cli, tmp_path: Path) -> None:
    """A new version that has fewer files, and an empty one, under another form of the package's name."""
    source = environments.venv(tmp_path / "source")
    (packages,) = source.glob("lib/python*/site-packages")
    record = "".join(f"{path},,\n" for path in PACKAGE)
    for path, text in {**PACKAGE, "some.thing-1.0.dist-info/RECORD": record}.items():
        (packages / path).parent.mkdir(exist_ok=True, parents=True)
        (packages / path).write_text(text)
    distlaunch.write("x.py", SHOWS)
    command = ("local", "--env-ship", str(source), "--env-ship-dir", str(tmp_path / "store"), "x.py")
    assert distlaunch(*command).stdout.startswith("1.0 ModuleSpec")
    (packages,) = (tmp_path / "store").glob("envs/*/env/lib/python*/site-packages")
    for name in ("some_thing", "some.thing-1.0.dist-info"):
        shutil.rmtree(packages / name)
    (packages / "some_thing").mkdir()
    (packages / "some_thing/__init__.py").write_text("")
    (packages / "some_thing-2.0.dist-info").mkdir()
    (packages / "some_thing-2.0.dist-info/METADATA").write_text("Name: some.thing\nVersion: 2.0\n")
    (packages / "brought.py").unlink()

    later = distlaunch(*command)

    assert later.stdout == "2.0 None\n", later
    assert (packages / "some_thing/__init__.py").read_text() == ""
    assert (packages / "brought.py").exists(), "the rest came back"


def test_a_repair_that_was_cut_off_is_completed_while_another_run_uses_the_environment(
    distlaunch: Cli, tmp_path: Path
) -> None:
    source = environments.venv(tmp_path / "source")
    os.mkfifo(distlaunch.directory / "go")
    distlaunch.write("waits.py", "print('runs', flush=True)\nopen('go').read()\nimport brought\nprint('imports')\n")
    distlaunch.write("x.py", environments.SCRIPT)
    options = ("local", "--env-ship", str(source), "--env-ship-dir", str(tmp_path / "store"))
    with contextlib.closing(Running(distlaunch.start(*options, "waits.py"))) as running:
        running.until("runs")
        (brought,) = (tmp_path / "store").glob("envs/*/env")
        kept = brought.stat().st_ino
        cut_off(brought)
        brought.parent.with_suffix(".json").unlink()  # as a repair does first

        later = distlaunch(*options, "x.py")

        assert later.exit_code == 0, later
        assert brought.stat().st_ino == kept
        (distlaunch.directory / "go").write_text("")
        running.until("imports")
        assert running.end() == 0, running


def may_be_removed(directory: Path) -> bool:
    """Whether systemd-tmpfiles would look into a directory for what is old: it needs an exclusive lock of it."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        return flock.taken(fd)
    finally:
        os.close(fd)


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
