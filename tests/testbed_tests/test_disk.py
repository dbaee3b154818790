"""A small disk of some hosts, and what it leaves here."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from testbed import TestbedError, disk

if TYPE_CHECKING:
    from pathlib import Path

    from testbed import Testbed


def devices(image: Path) -> list[dict[str, Any]]:
    """The loop devices of an image."""
    argv = ("losetup", "--list", "--json", "--output", "NAME,AUTOCLEAR,BACK-FILE")
    told = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return [each for each in json.loads(told or "{}").get("loopdevices", ()) if str(image) in each["back-file"]]


def test_the_kernel_frees_the_device_of_a_disk_with_its_last_mount(bare: Testbed, tmp_path: Path) -> None:
    place, image = tmp_path / "small", tmp_path / "small.img"
    place.mkdir()
    with disk.small(place, bare.hosts[:2], 16 << 20):
        assert [each["autoclear"] for each in devices(image)] == [True]
        assert bare.hosts[0].run(("touch", f"{place}/shared")).returncode == 0

    assert devices(image) == []
    assert not image.exists()


def test_a_disk_that_cannot_be_made_leaves_nothing(bare: Testbed, tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="mkfs"), disk.small(tmp_path / "small", bare.hosts[:1], 10):
        pass

    assert list(tmp_path.iterdir()) == []
