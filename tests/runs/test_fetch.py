"""`distlaunch fetch`: what it does with files that change, with a full disk, and with what an earlier one has left."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from launcher import output
from launcher.agent.outputs.tree import Tree
from launcher.backends._outputs import RemoteOutputs
from launcher.errors import CommandError
from launcher.payload import agent_archive
from launcher.runs import directories
from launcher.service import fetch
from launcher.system.pipes import ProgramBridge

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

CONTENT = bytes(range(256)) * 12_000
WRITES = "import os\nos.makedirs('out')\nopen('out/model.pt', 'wb').write(bytes(range(256)) * 12_000)\n"


@pytest.fixture
def run(distlaunch: Cli) -> str:
    """A run that has written out/model.pt."""
    distlaunch.write("writes.py", WRITES)
    done = distlaunch("local", "writes.py")
    assert done.exit_code == 0, done.stderr
    return "last"


def test_a_transfer_continues_where_it_stopped_and_verifies_what_was_there(run: str, distlaunch: Cli) -> None:
    for name, left in {"right": CONTENT[:2_000_000], "wrong": b"x" * 2_000_000, "longer": CONTENT + b"x"}.items():
        part = distlaunch.directory / name / "out" / ".model.pt.distlaunch-part"
        part.parent.mkdir(parents=True)
        part.write_bytes(left)

        done = distlaunch("fetch", run, "out", "--to", name)

        assert done.exit_code == 0, done.stderr
        assert (part.parent / "model.pt").read_bytes() == CONTENT
        assert os.listdir(part.parent) == ["model.pt"]


def test_the_other_end_sends_only_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(CONTENT)
    (tmp_path / "agent.pyz").write_bytes(agent_archive.packed())
    (tmp_path / "spec.json").write_text(json.dumps({"cwd": str(tmp_path)}))
    argv = (sys.executable, str(tmp_path / "agent.pyz"), "host", "outputs", str(tmp_path / "spec.json"))
    bridge = ProgramBridge(argv)
    outputs = RemoteOutputs("here", bridge)
    got: list[bytes] = []

    ending = outputs.read("model.pt", 2_000_000, got.append)
    bridge._process.kill()
    with pytest.raises(CommandError, match="connection broke"):
        outputs.listed("*")

    assert b"".join(got) == CONTENT[2_000_000:]
    assert ending.size == len(CONTENT)


def test_a_full_disk_is_one_error_and_leaves_nothing_half_written(run: str, distlaunch: Cli, small_disk: Path) -> None:
    done = distlaunch("fetch", run, "out", "--to", str(small_disk / "here"))

    assert done.exit_code == 4
    assert done.stderr.count("error[storage]: cannot write") == 1
    assert [path for path in small_disk.rglob("*") if path.is_file()] == []


def test_a_file_that_changes_meanwhile_is_read_once_more_and_then_named(run: str, distlaunch: Cli) -> None:
    path = distlaunch.directory / "out" / "model.pt"
    (path.parent / "other.txt").write_text("other")
    found = directories.find(distlaunch.runs, run)
    changes: list[int] = []

    def change(_text: str, part: tuple[int, int] | None) -> None:
        if part is not None and part[0] and len(changes) < limit:
            changes.append(part[0])
            with open(path, "r+b") as file:
                file.write(b"%09d" % len(changes))

    output.progress_by(change)
    try:
        limit = 1
        once = fetch.fetch(found, ["out"], distlaunch.directory / "once", [0])
        limit = 10_000
        with pytest.raises(CommandError, match=r"changed while they were read.*: out/model\.pt"):
            fetch.fetch(found, ["out"], distlaunch.directory / "always", [0])
    finally:
        output.progress_by(None)

    assert {file["path"] for file in once["files"]} == {"out/model.pt", "out/other.txt"}
    assert (distlaunch.directory / "once/out/model.pt").read_bytes() == b"000000001" + CONTENT[9:]
    assert os.listdir(distlaunch.directory / "always/out") == ["other.txt"]


def test_what_is_appended_meanwhile_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(CONTENT)
    got: list[bytes] = []

    def append(block: bytes) -> None:
        got.append(block)
        with open(tmp_path / "log", "ab") as file:
            file.write(b"more")

    ending = Tree(str(tmp_path)).read("log", 0, append)

    assert b"".join(got) == CONTENT
    assert ending["changed"] is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("none-such", "*"), "no run 'none-such'"),
        (("last", "nothing/**"), "there: "),
        (("last", "../*"), "leads out of the directory"),
        (("last", "[z-a]"), "is invalid"),
        (("last", "out", "--to", "writes.py"), "is a file, not a directory"),
        (("last", "out", "--node", "1"), "has no node '1'"),
        (("last",), "name what to copy"),
    ],
)
def test_wrong_requests_are_one_clear_error(run: str, distlaunch: Cli, words: tuple[str, ...], said: str) -> None:
    done = distlaunch("fetch", *words)

    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.count("error[") == 1
