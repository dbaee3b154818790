"""Each benchmark runs, checks what it measures, and prints a ratio. The ratios are in docs/benchmarks.md."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fork_servers import AT_START

if TYPE_CHECKING:
    from tests.forked import Server

ROOT = Path(__file__).resolve().parents[2]
SMALLEST = {
    "collectives.py": ("--rounds", "2", "--sizes", "64K"),
    "cli.py": ("--rounds", "1", "--runs", "3", "--no-warm-up"),
    "start.py": ("--rounds", "1", "--workers", "1", "--no-warm-up", "--only", "distlaunch,torchrun,import torch,warm"),
    "logs.py": ("--rounds", "1", "--ranks", "2", "--lines", "500"),
    "reports.py": ("--rounds", "1", "--nodes", "2", "--ranks", "4", "--lines", "400", "--hours", "0.1"),
    "loader.py": ("--rounds", "1", "--seconds", "0.2", "--images", "80", "--only", "ours,decode-and-crop"),
    "checkpoint.py": ("--saves", "1", "--rounds", "1", "--model", "resnet18", "--samples", "2000"),
    "train_step.py": ("--rounds", "1", "--steps", "2", "--batch-size", "4", "--side", "32"),
    "reach.py": ("--rounds", "1", "--nodes", "4"),
    "scale.py": ("--nodes", "4,8", "--rest", "1", "--agents", "2,3"),
    "elastic.py": ("--nodes", "3", "--rounds", "1", "--rest", "1"),
    "sync.py": ("--rounds", "1", "--steps", "4", "--batch-size", "2", "--side", "32", "--ways", "average-gradients"),
    "restart.py": ("--runs", "1", "--torchrun-runs", "1", "--limit", "90"),
    "stacks.py": ("--rounds", "1", "--nodes", "2", "--ranks", "2"),
    "ssh_many.py": ("--hosts", "3"),
    "k8s_follow.py": ("--pods", "4", "--lines", "20"),
    "watching.py": ("--seconds", "2", "--nodes", "2", "--ranks", "2"),
    "following.py": ("--seconds", "2", "--nodes", "2,70", "--ranks", "2"),
    "before_after.py": (str(ROOT), "--rounds", "1", "--workers", "1", "--no-warm-up", "--only", "cli,start"),
}
SMALLEST_ON_CLUSTERS = {
    "slurm.py": ("--rounds", "1", "--no-warm-up", "--only", "distlaunch --detach,sbatch,submitit,distlaunch"),
    "ssh.py": ("--hosts", "2", "--rounds", "1", "--only", "floor,distlaunch"),
    "k8s.py": ("--nodes", "3", "--rounds", "1", "--no-warm-up"),
    "k8s_scale.py": ("--pods", "3,6"),
    "env_ship.py": ("--rounds", "1", "--modules", "20", "--hosts", "3", "--megabytes", "8"),
}
"""These start clusters of their own."""

COMPARED = {
    "collectives.py": ("bare loop", "itself"),
    "cli.py": ("python -c pass", "distlaunch --help", "torchrun --help"),
    "start.py": ("distlaunch", "torchrun", "warm / import torch", "pss ratio"),
    "logs.py": ("cat", "distlaunch, all ranks", "distlaunch, rank 0 shown"),
    "reports.py": ("report, wall s", "report / wc -l, wall ratio", "report, rss MB", "page, KB"),
    "loader.py": ("ours / decode-and-crop",),
    "checkpoint.py": ("ours / memcpy", "ours / dcp.async_save", "ours / an epoch's beginning"),
    "train_step.py": ("ours / recipe", "ours / bare", "ceiling"),
    "reach.py": ("all pairs from one place",),
    "elastic.py": ("| 3 | distlaunch |", "| 3 | torchelastic |", "3 nodes, ratio distlaunch / torchelastic: start_s"),
    "scale.py": ("| 4 |", "| 8 |", "| slope |", "8 nodes, ratio to what is allowed", "whole run s"),
    "sync.py": ("`ddp`", "`average-gradients`"),
    "restart.py": ("distlaunch / torchrun",),
    "stacks.py": ("stacks of 4 ranks on 2 nodes", "median"),
    "ssh_many.py": ("ratio to the target", "| 3 |"),
    "k8s_follow.py": ('"pods": 4', '"whole": true'),
    "watching.py": ("top ", "samples "),
    "following.py": ("ratio to 1 CPU", "| 2 |", "| 70 |"),
    "before_after.py": ("| distlaunch ls |", "| start, as torchrun, 1 workers |"),
    "slurm.py": (
        "distlaunch --detach / submitit, cpu ratio",
        "more CPU than sbatch",
        "to the end of the job, 1 rounds\n  distlaunch ",
    ),
    "ssh.py": ("distlaunch / floor",),
    "env_ship.py": ("brought before / from the slow directory", "3 hosts / 2 hosts", "bytes on the busiest link"),
    "k8s.py": ("kubectl apply", "ratio  "),
    "k8s_scale.py": ("| submission | 6 |", "| status | slope |", "6 pods, submission, API calls: ratio"),
}
"""What each prints, at least."""

IMPORT_TORCH = ("checkpoint.py", "reach.py", "train_step.py")
MARKS = {
    "slurm.py": pytest.mark.slurm,
    "ssh.py": pytest.mark.ssh,
    "env_ship.py": pytest.mark.ssh,
    "k8s.py": pytest.mark.k8s,
    "k8s_scale.py": pytest.mark.k8s,
}
ONLY_STARTED = ("doctor.py", "clusters.py", "frameworks.py")
"""They take long, and the tests of doctor, of login nodes and races, and of frameworks, do what they measure."""


@pytest.mark.torch
@pytest.mark.parametrize("name", SMALLEST)
def test_a_benchmark_runs_and_prints_a_ratio(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    env = {key: value for key, value in AT_START.items() if key != "PYTHONPATH"} | {"TMPDIR": str(tmp_path)}
    argv = [sys.executable, str(ROOT / "benchmarks" / name), *SMALLEST[name]]
    forked: Server | None = request.getfixturevalue("torch_server") if name in IMPORT_TORCH else None

    run = (forked or subprocess).run(argv, env=env, cwd=tmp_path, capture_output=True, text=True)

    assert run.returncode == 0, run.stdout + run.stderr
    # None if torchrun has not restarted, which does not always succeed.
    assert re.search(r"ratio.*(\d\.\d|none)", run.stdout, re.DOTALL), run.stdout
    assert [what for what in COMPARED[name] if what not in run.stdout] == [], run.stdout
    assert set(re.findall(r"lost (.*)", run.stdout)) <= {"0"}
    assert set(re.findall(r"distlaunch +(\d of 1) runs trained again", run.stdout)) <= {"1 of 1"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS[name]) for name in SMALLEST_ON_CLUSTERS])
def test_a_benchmark_on_clusters_runs_on_the_smallest_one(name: str, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("a testbed needs root")
    env = {key: value for key, value in AT_START.items() if key != "PYTHONPATH"}
    argv = [sys.executable, str(ROOT / "benchmarks" / name), *SMALLEST_ON_CLUSTERS[name]]

    run = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True)

    if missing := re.search(r"NotAvailableError: (.*)", run.stderr):
        pytest.skip(missing[1])
    assert run.returncode == 0, run.stdout + run.stderr
    assert [what for what in COMPARED[name] if what not in run.stdout] == [], run.stdout
    assert "killed" not in run.stderr


@pytest.mark.torch(False)
def test_processes_of_the_benchmark_itself_are_not_taken_for_a_commands() -> None:
    """A testbed's daemons were once killed because of that."""
    from benchmarks._measure import Contender, measure

    with subprocess.Popen(["sleep", "1000"]) as own:
        contender = Contender("echo", ["sh", "-c", "sleep 1000 & echo $!"])
        with pytest.raises(
            RuntimeError, match=f"echo: our own processes .*{own.pid}.* would be taken for what it leaves behind"
        ):
            measure(contender)
        sample = measure(contender, detached=False)
        left = int(sample.output)
        assert own.poll() is None
        os.kill(left, signal.SIGKILL)
        own.kill()
    assert sample.exit_code == 0


@pytest.mark.torch(False)
def test_a_ratio_is_the_median_over_pairs_with_its_range() -> None:
    from benchmarks._measure import Sample, paired_ratios, verdict

    ours, theirs = ([Sample(wall, 1.0, 0, 0) for wall in walls] for walls in ((1.0, 3.0, 2.0), (4.0, 4.0, 4.0)))
    found = paired_ratios(ours, theirs, "wall_s")

    assert verdict(found) == "0.500 (0.250 to 0.750)"
    assert verdict(found, at_most=0.4) == "0.500 (0.250 to 0.750; target <= 0.4: MISSED)"
    assert verdict(found, at_least=0.5) == "0.500 (0.250 to 0.750; target >= 0.5: met)"
    assert verdict(found[:1], at_most=0.25) == "0.250 (target <= 0.25: met)"


@pytest.mark.torch(False)
def test_every_benchmark_has_a_test() -> None:
    found = {path.name for path in (ROOT / "benchmarks").glob("[!_]*.py")}
    assert found == {*SMALLEST, *SMALLEST_ON_CLUSTERS, *ONLY_STARTED} == {*COMPARED, *ONLY_STARTED}


@pytest.mark.torch(False)
@pytest.mark.parametrize("name", [*ONLY_STARTED, *SMALLEST_ON_CLUSTERS])
def test_a_benchmark_on_clusters_can_be_started(name: str) -> None:
    option = "--pods" if name == "k8s_scale.py" else "--rounds"
    run = subprocess.run([sys.executable, ROOT / "benchmarks" / name, option, "banana"], capture_output=True, text=True)

    assert run.returncode == 2
    assert re.search(r"invalid \w+ value: 'banana'", run.stderr)


@pytest.mark.torch(False)
def test_a_start_counts_only_if_every_rank_has_the_right_sum() -> None:
    from benchmarks.start import problem

    right = "rank 0/2 on a: before 1, after 3\nrank 1/2 on b: before 2, after 3\n"
    assert problem(2, right) is None
    assert problem(2, right.replace("after 3", "after 4", 1)) == "rank 0 of 2 did not print 'before 1, after 3' once"
    assert problem(2, right + right.splitlines()[1]) == "rank 1 of 2 did not print 'before 2, after 3' once"


@pytest.mark.torch(False)
def test_lines_that_are_lost_or_out_of_order_are_counted() -> None:
    from benchmarks._workers.lines import text
    from benchmarks.logs import missing

    lines = [b"".join(b"[0:%d] %s\n" % (rank, line) for line in text(rank, 3).splitlines()) for rank in range(2)]
    assert missing(b"".join(lines), 2, 3) == "0"
    assert missing(lines[0] + b"".join(lines[1].splitlines(keepends=True)[:-1]), 2, 3) == "1"
    first, second, third = lines[0].splitlines(keepends=True)
    assert missing(second + first + third + lines[1], 2, 3) == "0, 1 ranks not in order"
