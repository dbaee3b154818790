"""What becomes of workers' lines that cannot be written, as on a disk that is full, and of the run."""

from __future__ import annotations

import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.torchrun.behaviour import Both, Play
    from tests.torchrun.node import Node

WHY = "warning: stdout: File too large: lines are lost until it can be written again\n"
COUNTS = """
import os, time
number = 0
while not os.path.exists("stop"):
    print(f"line {number} " + 200 * ".", flush=True)
    number += 1
    time.sleep(0.002)
open("printed", "w").write(str(number))
"""
LINE = rb"line (\d+) \.{200}"


def full(play: Play) -> None:
    (play.directory / "x.py").write_text("print('line')")
    with Path("/dev/full").open("wb") as stdout:
        play.start("--standalone", "x.py", stdout=stdout)


@pytest.mark.torch
def test_a_run_whose_stdout_cannot_be_written_fails(played: Callable[[Callable[[Play], None]], Both]) -> None:
    both = played(full)

    assert both.same(lambda play: play.codes) == [1]
    assert all("No space left on device" in play.ended[0].stderr for play in both)
    assert "1 lines of stdout were lost" in both.ours.ended[0].stderr


def test_lines_are_written_again_once_there_is_room_and_the_lost_ones_are_counted(
    start: Callable[..., Node], tmp_path: Path
) -> None:
    def seen() -> list[int]:
        return [int(number) for number in re.findall(LINE + rb"\n", (tmp_path / "out.0").read_bytes())]

    node = start(COUNTS, "--standalone", "x.py")
    node.until(seen)
    hard = resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (4000, hard))
    node.until(lambda: WHY in node.err)
    before = seen()
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
    node.until(lambda: len(seen()) > len(before))
    (tmp_path / "stop").touch()

    assert node.wait() == 1
    lost = int((tmp_path / "printed").read_text()) - len(seen())
    assert node.err.count("lines are lost") == 1
    assert f"{lost} lines of stdout were lost: File too large" in node.err
    parts = [line for line in (tmp_path / "out.0").read_bytes().splitlines() if not re.fullmatch(LINE, line)]
    assert len(parts) <= 1, parts  # the line that was being written
