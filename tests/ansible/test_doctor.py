"""`distlaunch doctor` over SSH: hosts are named, and left out, by their names in the inventory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh


def test_a_host_with_a_full_disk_is_left_out_by_its_name_in_the_inventory(rack: Rack) -> None:
    inventory = rack.inventory("".join(f"gpu{number} ansible_host=n{number}\n" for number in (1, 2, 3)))
    settings = {"backend": "ansible", "python": sys.executable, "remote_dir": str(rack.remote)}
    lines = [f'{key} = "{value}"' for key, value in settings.items()]
    rack.cli.write(
        ".config/distlaunch/config.toml", "\n".join(["[clusters.lab]", *lines, f'inventory = ["{inventory}"]', ""])
    )
    second = rack.ssh.hosts[1]
    second.private_directory(Path("/dev/shm"), size_bytes=64 << 20)
    try:
        second.fill(Path("/dev/shm"))
        done = rack.shell("doctor", "--on", "lab", "--seconds", "0.2", "--quarantine", "--output", "json")
    finally:
        second.shared_directory(Path("/dev/shm"))

    assert done.exit_code == 1, done.stderr
    found = {(item["host"], item["check"]) for item in done.json["result"]["findings"] if item["status"] == "fail"}
    by_load = {"speed", "links"}  # others may use the CPUs that all hosts here share
    assert {item for item in found if item[1] not in by_load} == {("gpu2", "disk")}
    kept = json.loads((rack.cli.directory / ".config/distlaunch/quarantine.json").read_text())["lab"]
    assert kept.pop("gpu2")["reason"].startswith("disk: ")
    for host in kept:
        assert {check for name, check in found if name == host} <= by_load
        assert rack.shell("doctor", "--on", "lab", "--release", host).exit_code == 0
    after = rack.shell("run", "--on", "lab", "--dry-run", "--output", "json", "reduce.py")
    assert [node["host"] for node in after.json["result"]["nodes"]] == ["gpu1", "gpu3"], after.stderr
