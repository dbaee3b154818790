"""Fixtures for all tests."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from launcher.payload import agent_archive
from testbed import wait_until
from tests.command import Cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
