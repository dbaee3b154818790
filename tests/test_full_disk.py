"""A full disk below the run directory: runs lose lines, and nothing else."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli


@pytest.mark.slow
def test_a_full_disk_loses_lines_but_not_the_run_and_before_a_run_it_is_one_clear_error(
    small_disk: Path, distlaunch: Cli
) -> None:
    flood = "import sys\nfor _ in range(1000):\n    print('x' * 10_000)\n"
    distlaunch.write("flood.py", flood + "if len(sys.argv) > 1:\n    raise ValueError('in the end')\n")
    distlaunch.write("small.py", "")
    env: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(small_disk / "runs")}

    failed = distlaunch("local", "flood.py", "fail", env=env)
    status = distlaunch("status", "last", env=env)
    asked = json.loads(distlaunch("status", "last", "--output", "json", env=env).stdout)["result"]
    before = distlaunch("local", "flood.py", env=env)
    listed = distlaunch("ls", env=env)
    shutil.rmtree(small_disk / "runs")
    fine = distlaunch("local", "flood.py", env=env)
    fine_state = distlaunch("ls", env=env)

    assert failed.exit_code == 1
    assert "the script failed: ValueError: in the end" in failed.stderr
    assert f"{asked['nodes'][0]['lines_lost']:,} lines were not kept" in failed.stderr
    assert re.search(r"lines( of rank 0)? were not kept: the disk of the run directory is full", failed.stderr)
    assert "ValueError: in the end" in status.stdout
    assert f"{asked['nodes'][0]['lines_lost']:,} lines were not kept" in status.stdout
    assert 700 < asked["nodes"][0]["lines_lost"] <= 1005, "the traceback has lines, too"
    assert before.exit_code == 4
    assert "No space left on device" in before.stderr
    assert "DISTLAUNCH_RUNS_DIR" in before.stderr
    assert "failed" in listed.stdout
    assert fine.exit_code == 0, fine.stderr
    assert "lines were not kept" in fine.stderr
    assert "success" in fine_state.stdout


@pytest.mark.slow
def test_a_follower_reports_a_full_disk_while_it_is_full(small_disk: Path, distlaunch: Cli) -> None:
    distlaunch.write("flood.py", "import signal\nprint('x\\n' * 3_000_000, flush=True)\nsignal.pause()\n")
    env: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(small_disk / "runs")}
    with distlaunch.start("local", "flood.py", env=env, stdout=subprocess.DEVNULL) as process:
        assert process.stderr
        reported = next((line for line in process.stderr if b"lines were not kept" in line), b"")
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()

    assert re.match(
        rb"warning: node 0 \(\S+\): [\d,]+ lines were not kept: the disk of the run directory is full\n", reported
    )
    assert process.wait() == 130, rest


def test_a_run_whose_disk_is_full_can_be_cancelled(small_disk: Path, distlaunch: Cli) -> None:
    distlaunch.write("flood.py", "import signal\nprint('x\\n' * 3_000_000, flush=True)\nsignal.pause()\n")
    env: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(small_disk / "runs")}
    run = distlaunch("local", "--detach", "flood.py", env=env).stdout.strip()
    for _ in range(200):
        state = json.loads(distlaunch("status", run, "--output", "json", env=env).stdout)["result"]
        if state["nodes"] and state["nodes"][0]["lines_lost"]:
            break

    done = distlaunch("cancel", run, env=env)

    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"{run}: cancelled\n"
    assert "No space left on device; cancelling without recording it" in done.stderr
