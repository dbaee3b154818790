"""The first steps of a new user: a command in an empty directory, and its result."""

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
    done = distlaunch("local", "--nodes", "2", "train.py", "--out", "a run's directory")

    assert done.exit_code == 0, done.stderr
    accuracy = re.search(r"test accuracy ([\d.]+)%", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 97
    assert "samples" in done.stdout
    metrics = [json.loads(line) for line in (tmp_path / "a run's directory/metrics.jsonl").read_text().splitlines()]
    assert metrics
    assert "using the bundled train.py" in done.stderr
    assert "nanobind" not in done.stderr


@pytest.mark.torch
def test_reduce_results_in_ten_on_each_of_four_ranks(distlaunch: Cli) -> None:
    done = distlaunch("local", "--nodes", "2", "--nproc-per-node", "2", "--log-ranks", "all", "reduce.py")

    assert done.exit_code == 0, done.stderr
    assert sorted(re.findall(r"\[(\d):(\d)\] rank (\d)/4 on \S+: before (\d), after 10", done.stdout)) == [
        ("0", "0", "0", "1"), ("0", "1", "1", "2"), ("1", "2", "2", "3"), ("1", "3", "3", "4"),
    ]  # fmt: skip


SHOWS_SECRET = """
import glob, os
value = os.environ["TOKEN"].encode()
def read(path):
    try:
        return open(path, "rb").read()
    except OSError:
        return b""
lines = [path for path in glob.glob("/proc/[0-9]*/cmdline") if value in read(path)]
print(len(value), os.environ["PLAIN"], lines)
"""


def test_a_secret_reaches_the_workers_but_no_file_and_no_command_line(distlaunch: Cli, tmp_path: Path) -> None:
    distlaunch.write("show.py", SHOWS_SECRET)
    value = "hunter2-" + "x" * 20
    env: dict[str, str | None] = {"TOKEN": value}

    done = distlaunch("local", "--secret", "TOKEN", "--env", "PLAIN=seen", "show.py", env=env)
    dry = distlaunch("local", "--dry-run", "--secret", "TOKEN", "show.py", env=env)
    rendered = distlaunch("local", "--render-to", "rendered", "--secret", "TOKEN", "show.py", env=env)

    assert done.stdout == "28 seen []\n"
    assert (dry.exit_code, rendered.exit_code) == (0, 0)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and value.encode() in path.read_bytes()]
    assert files == []
    assert value not in dry.stdout + dry.stderr + rendered.stdout + rendered.stderr
