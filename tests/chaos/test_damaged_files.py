"""Damaged run directories and inventories: each command reads them, or refuses them in one clear error."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.command import Cli


@pytest.mark.parametrize("seed", range(2))
def test_a_damaged_run_directory_is_shown_or_refused_by_every_command(distlaunch: Cli, seed: int) -> None:
    chance = random.Random(seed)
    distlaunch.write("x.py", "print('said', flush=True)\n")
    done = distlaunch("local", "--nodes", "2", "x.py")
    assert done.exit_code == 0, done.stderr
    (run,) = distlaunch.runs.iterdir()
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and path.suffix != ".pyz"]
    for path in files:
        whole = path.read_bytes()
        cut = chance.randrange(len(whole) + 1)
        for damaged in (whole[:cut], b"", b"[]", chance.randbytes(200), whole[:cut] + b"\0\xff" + whole[cut:]):
            path.write_bytes(damaged)
            for command in (("status", run.name, "--output", "json"), ("logs", run.name), ("ls", "--output", "json")):
                shown = distlaunch(*command)
                assert "Traceback" not in shown.stderr, (path.name, damaged, command, shown.stderr)
                assert shown.exit_code in (0, 1, 2, 3, 4, 5), (path.name, damaged, command, shown)
                if "json" in command and shown.exit_code == 0:
                    assert shown.json["ok"]
        path.write_bytes(whole)


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 400, "9" * 18, "1e999", "NaN"])
def test_no_command_reports_a_bug_for_impossible_numbers(distlaunch: Cli, number: str) -> None:
    distlaunch.write("x.py", "print('said', flush=True)\n")
    assert distlaunch("local", "x.py").exit_code == 0
    (run,) = distlaunch.runs.iterdir()
    for path in [*run.glob("*.json"), *run.glob("nodes/0/stream")]:
        whole = path.read_bytes()
        path.write_bytes(re.sub(rb"(?<=[:\[ ])-?[0-9.]+(?=[,}\]\n])", number.encode(), whole))
        assert path.read_bytes() != whole or path.name == "rendezvous.json", path
        (run / "result.json").rename(run / "result")  # or the stream would not be read
        for command in (("status", run.name), ("logs", run.name), ("ls",), ("cancel", run.name)):
            shown = distlaunch(*command)
            assert "this is a bug" not in shown.stderr, (path.name, command, shown.stderr)
            assert shown.exit_code in (0, 1, 2, 3, 4, 5), (path.name, command, shown)
        (run / "result").rename(run / "result.json")
        path.write_bytes(whole)


INVENTORY = """[nodes]
n1 ansible_host=10.0.0.1 distlaunch_workers=2
n[2:3] ansible_user=me
[nodes:vars]
ansible_port=22
[more:children]
nodes
"""


@pytest.mark.parametrize("seed", range(5))
def test_a_damaged_inventory_is_read_or_refused_in_one_error(distlaunch: Cli, seed: int) -> None:
    chance = random.Random(seed)
    text = list(INVENTORY.encode())
    for _ in range(chance.choice((1, 3, 30))):
        at = chance.randrange(len(text))
        text[at : at + chance.randrange(3)] = chance.choice(
            (b"", b"\0", b"\xff", b"[", b"]", b"=", b"{{ x }}", b"'", b"\n", b"[1:9999999]")
        )
    (distlaunch.directory / "hosts.ini").write_bytes(bytes(text))
    distlaunch.write("x.py", "print(1)\n")

    shown = distlaunch("ansible", "--inventory", "hosts.ini", "--nodes", "1", "--dry-run", "x.py")

    assert shown.exit_code in (0, 2), (bytes(text), shown)
    assert "Traceback" not in shown.stderr, (bytes(text), shown)
    assert shown.stderr.count("error[") == int(shown.exit_code != 0), (bytes(text), shown)
