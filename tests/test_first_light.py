"""The whole path, as a newcomer walks it: a command in an empty folder, and what comes of it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli


@pytest.mark.torch
def test_the_bundled_trainer_learns_the_digits_on_two_simulated_nodes(distlaunch: Cli, tmp_path: Path) -> None:
    done = distlaunch("local", "--nodes", "2", "train.py", "--out", "a run's folder")

    assert done.exit_code == 0, done.stderr
    accuracy = re.search(r"test accuracy ([\d.]+)%", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 97
    assert "samples" in done.stdout
    metrics = [json.loads(line) for line in (tmp_path / "a run's folder/metrics.jsonl").read_text().splitlines()]
    assert metrics
    assert "using the bundled train.py" in done.stderr
    assert "nanobind" not in done.stderr


@pytest.mark.torch
def test_reduce_gives_ten_on_each_of_four_ranks(distlaunch: Cli) -> None:
    done = distlaunch("local", "--nodes", "2", "--nproc-per-node", "2", "--log-ranks", "all", "reduce.py")

    assert done.exit_code == 0, done.stderr
    assert sorted(re.findall(r"\[(\d):(\d)\] rank (\d)/4 on \S+: before (\d), after 10", done.stdout)) == [
        ("0", "0", "0", "1"), ("0", "1", "1", "2"), ("1", "2", "2", "3"), ("1", "3", "3", "4"),
    ]  # fmt: skip


def test_a_secret_reaches_the_workers_and_no_file(distlaunch: Cli, tmp_path: Path) -> None:
    distlaunch.write("show.py", "import os\nprint(len(os.environ['TOKEN']), os.environ['PLAIN'])\n")
    value = "hunter2-" + "x" * 20

    done = distlaunch("local", "--secret", "TOKEN", "--env", "PLAIN=seen", "show.py", env={"TOKEN": value})
    dry = distlaunch("local", "--dry-run", "--secret", "TOKEN", "show.py", env={"TOKEN": value})

    assert done.stdout == "28 seen\n"
    files = [path for path in tmp_path.rglob("*") if path.is_file() and value.encode() in path.read_bytes()]
    assert files == []
    assert value not in dry.stdout + dry.stderr


def test_the_rendered_plan_runs_by_hand_and_is_what_a_submission_sends(distlaunch: Cli, tmp_path: Path) -> None:
    rendered = distlaunch("local", "--nodes", "2", "--render-to", "by hand", "reduce.py")
    assert rendered.exit_code == 0, rendered.stderr
    script = (tmp_path / "by hand/start.sh").read_text()

    assert script.startswith("#!/bin/sh\n")
    assert script.count("--node-rank") == 2
    spec = json.loads((tmp_path / "by hand/spec.json").read_text())
    assert spec["max_nodes"] == 2
    assert not distlaunch.runs.exists()


def test_a_full_disk_is_one_clear_error_during_a_run_and_before_one(small_disk: Path, distlaunch: Cli) -> None:
    distlaunch.write("flood.py", "import time\nfor _ in range(100):\n    print('x' * 100_000)\ntime.sleep(600)\n")
    env: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(small_disk / "runs")}

    during = distlaunch("local", "flood.py", env=env)
    before = distlaunch("local", "flood.py", env=env)
    listed = distlaunch("ls", env=env)

    assert during.exit_code == 1
    assert during.stderr.count("the agent stream cannot be written: No space left on device") == 1
    assert before.exit_code == 4
    assert "No space left on device" in before.stderr
    assert "DISTLAUNCH_RUNS_DIR" in before.stderr
    assert "failed" in listed.stdout
