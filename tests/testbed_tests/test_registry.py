"""The list of this machine's testbeds, which all checkouts share, and where their files are."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest

from testbed import KubeOptions, Testbed, TestbedError, fixtures, packages, processes, registry
from testbed.registry import Record


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A list of its own."""
    if packages.why_no_hosts() or packages.missing(packages.NETWORK):
        pytest.skip("the testbed needs root")
    monkeypatch.setattr(registry, "STATE", tmp_path / "state")
    return tmp_path / "state"


@pytest.mark.parametrize(
    ("more", "stays"),
    [
        ({"color": "red"}, True),
        ({"color": "red", "start_ticks": 1}, False),
    ],
)
def test_a_testbed_of_another_version_is_removed_only_if_its_owner_is_dead(
    state: Path, more: dict[str, object], stays: bool
) -> None:
    ticks = processes.start_ticks(os.getpid())
    assert ticks
    record = Record(index=98, pid=os.getpid(), start_ticks=ticks, directory="/nowhere", own_directory=False)
    with registry.locked():
        registry.write(record)
        (state / "98/record.json").write_text(json.dumps({**asdict(record), **more}))
        registry.clean()

    assert (state / "98").exists() is stays


@pytest.mark.parametrize(
    ("directory", "kubernetes"),
    [("/dev/shm/bed", None), ("/var/log/bed", KubeOptions()), ("/run/containerd", KubeOptions())],
)
def test_a_directory_that_hosts_would_not_see_is_refused(directory: str, kubernetes: KubeOptions | None) -> None:
    with pytest.raises(TestbedError, match=f"^{directory}: hosts do not see it"):
        Testbed(Path(directory)).up(1, kubernetes=kubernetes)


def test_each_host_has_memory_of_its_own(bare: Testbed) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as here:
        seen = [host.run(("test", "-d", here), cwd="/").returncode for host in bare.hosts]
    disks = [os.stat(host.path(Path("/dev/shm"))).st_dev for host in bare.hosts]

    assert seen == [1] * len(bare.hosts)
    assert len({*disks, os.stat("/dev/shm").st_dev}) == 1 + len(bare.hosts)


def test_a_testbed_does_not_follow_the_usual_directory_to_where_hosts_do_not_see_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")

    with fixtures.make(1) as testbed:
        there = testbed.hosts[0].run(("test", "-d", str(testbed.directory)), cwd="/")
        assert there.returncode == 0, testbed.directory
        assert not testbed.directory.is_relative_to("/dev/shm")
