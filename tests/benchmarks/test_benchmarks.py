"""Each benchmark runs, checks what it measures, and prints a ratio. What the ratios are is for docs/benchmarks.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALLEST = {
    "collectives.py": ("--rounds", "2", "--sizes", "64K"),
    "cli.py": ("--rounds", "1", "--runs", "3"),
    "start.py": ("--rounds", "1", "--workers", "2", "--no-warm-up", "--only", "distlaunch,torchrun"),
    "logs.py": ("--rounds", "1", "--ranks", "2", "--lines", "500"),
    "loader.py": ("--rounds", "1", "--seconds", "0.2", "--images", "200", "--only", "ours,decode-and-crop"),
    "checkpoint.py": ("--saves", "1", "--rounds", "1", "--model", "resnet18", "--samples", "2000"),
    "train_step.py": ("--rounds", "1", "--steps", "4", "--batch-size", "4", "--side", "32"),
    "reach.py": ("--rounds", "1", "--nodes", "4"),
    "sync.py": ("--rounds", "1", "--steps", "4", "--batch-size", "2", "--side", "32", "--ways", "average-gradients"),
    "restart.py": ("--runs", "1", "--torchrun-runs", "1", "--limit", "30"),
}

ON_CLUSTERS = ("doctor.py", "slurm.py", "ssh.py", "k8s.py")
"""These bring up clusters of their own, and take minutes: what the tests of the backends do is what they measure."""


@pytest.mark.parametrize("name", SMALLEST)
def test_it_runs_and_prints_a_ratio(name: str, tmp_path: Path) -> None:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"TMPDIR": str(tmp_path)}

    run = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / name, *SMALLEST[name]],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
    )

    assert run.returncode == 0, run.stderr
    assert re.search(r"ratio.*(\d\.\d|none)", run.stdout, re.DOTALL), run.stdout  # torchrun's restart does not always succeed
    assert set(re.findall(r"lost (.*)", run.stdout)) <= {"0"}
    assert set(re.findall(r"distlaunch +(\d of 1) runs trained again", run.stdout)) <= {"1 of 1"}


def test_every_benchmark_is_tried() -> None:
    assert {path.name for path in (ROOT / "benchmarks").glob("[!_]*.py")} == {*SMALLEST, *ON_CLUSTERS}


@pytest.mark.parametrize("name", ON_CLUSTERS)
def test_those_on_clusters_can_be_started(name: str) -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / name, "--rounds", "banana"], capture_output=True, text=True, timeout=60
    )

    assert run.returncode == 2
    assert "invalid int value: 'banana'" in run.stderr
