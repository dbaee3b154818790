"""`distlaunch doctor` over SSH: hosts are named, and left out, by their names in the inventory."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh
ASK = ("hosts", "--on", "lab", "--output", "json")


def test_a_host_with_a_full_disk_is_left_out_by_its_name_in_the_inventory(rack: Rack) -> None:
    inventory = rack.inventory("".join(f"gpu{number} ansible_host=n{number}\n" for number in (1, 2, 3)))
    settings = {"backend": "ansible", "python": sys.executable, "remote_dir": str(rack.remote)}
    lines = [f'{key} = "{value}"' for key, value in settings.items()]
    rack.cli.write(
        ".config/distlaunch/config.toml", "\n".join(["[clusters.lab]", *lines, f'inventory = ["{inventory}"]', ""])
    )
    names, second = ("gpu1", "gpu2", "gpu3"), rack.ssh.hosts[1]
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
    shown = rack.shell("hosts", "--on", "lab").stdout
    assert re.search(r"(?m)^gpu2 +up +.*FAIL \d+ (s|min) ago: .*disk.* disk: ", shown), shown
    verdicts = {host["host"]: host["doctor"] for host in rack.shell(*ASK).json["result"]["hosts"]}
    assert {host: verdict["run"] for host, verdict in verdicts.items()} == dict.fromkeys(
        names, done.json["result"]["run"]
    )
    told = {(host, each["check"]) for host, about in verdicts.items() for each in about["findings"]}
    assert told == {(item["host"], item["check"]) for item in done.json["result"]["findings"]}
    assert [verdicts[host]["status"] == "fail" for host in names] == [
        any(name == host for name, _ in found) for host in names
    ]
    for host in kept:
        assert {check for name, check in found if name == host} <= by_load
        assert rack.shell("doctor", "--on", "lab", "--release", host).exit_code == 0
    after = rack.shell("run", "--on", "lab", "--dry-run", "--output", "json", "reduce.py")
    assert [node["host"] for node in after.json["result"]["nodes"]] == ["gpu1", "gpu3"], after.stderr
