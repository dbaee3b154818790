"""Fixtures for all tests."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.payload import agent_archive
from testbed import wait_until
from tests.command import Cli

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLUGINS = ("selection", "rotation", "scheduling", "host", "load", "chaos", "measure", "threads", "failures", "summary")
pytest_plugins = [
    "testbed.fixtures",
    "tests.fork_servers",
    "tests.browser",
    "tests.ansible.behind",
    "tests.k8s.behind",
    "tests.slurm.laptop",
    *(f"tests.plugins.{name}" for name in _PLUGINS),
]


@pytest.fixture
def distlaunch(tmp_path: Path) -> Cli:
    """The command line, in a directory of its own."""
    return Cli(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with 1.3 MB beside an agent. Request it before what writes to it, so that it is unmounted last."""
    directory = tmp_path / "small"
    directory.mkdir()
    size = f"size={(len(agent_archive.packed()) >> 10) + 1280}k"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(directory)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield directory
    # An agent that has sent its last message is about to exit, and may still have its stream open.
    wait_until(
        "the disk to be unmounted",
        lambda: subprocess.run(["umount", str(directory)], capture_output=True).returncode == 0,
    )


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup of 1 GB that processes can move into; this process is moved out of it again."""
    root = Path("/sys/fs/cgroup/memory")
    v2 = not root.is_dir()
    root = Path("/sys/fs/cgroup") if v2 else root
    group = root / f"distlaunch-test-{os.getpid()}"
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    before = root / next(path for _, name, path in lines if name == ("" if v2 else "memory")).strip("/")
    try:
        group.mkdir()
        (group / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(str(1 << 30))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error.strerror}")
    yield group
    (before / "cgroup.procs").write_text(str(os.getpid()))
    for _ in range(100):
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.05)
        else:
            break
