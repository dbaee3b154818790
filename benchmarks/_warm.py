"""A start from what an earlier run has left standing, beside the import of torch alone."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._measure import ROOT, Sample, environment, median, paired_ratios, verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LIMIT_S = 120
_TARGET_S = 0.5
_TICKS = os.sysconf("SC_CLK_TCK")


def show_warm(workers: int, scratch: Path, rounds: int, problem: Callable[[str], str | None]) -> str:
    """Medians and ratios of `distlaunch local --warm`, once a run has left a server, to `import torch`."""
    env = {**environment(scratch), "DISTLAUNCH_WARM_DIR": str(scratch)}
    launcher = [sys.executable, "-m", "launcher"]
    run = [*launcher, "local", "--nproc-per-node", str(workers), "--warm", "10m", "--log-ranks", "all"]
    run.append(str(ROOT / "train/reduce.py"))
    try:
        _timed(run, env, 0)
        found = subprocess.run(
            [*launcher, "ls", "--warm", "--output", "json"], env=env, capture_output=True, check=True, timeout=_LIMIT_S
        )
        (server,) = json.loads(found.stdout)["result"]["warm"]
        warm, bare = [], []
        for _ in range(rounds):
            bare.append(_timed([sys.executable, "-c", "import torch"], env, 0))
            warm.append(_timed(run, env, server["pid"], problem))
    finally:
        subprocess.run([*launcher, "cancel", "--warm"], env=env, capture_output=True, check=False, timeout=_LIMIT_S)
    return "\n".join(_lines(workers, warm, bare))


def _lines(workers: int, warm: Sequence[Sample], bare: Sequence[Sample]) -> list[str]:
    lines = [f"{workers} worker{'s' * (workers > 1)}, started warm, {len(warm)} rounds"]
    for name, taken in (("warm", warm), ("import torch", bare)):
        lines.append(f"  {name:<12}  wall {median(taken, 'wall_s'):6.2f} s   cpu {median(taken, 'cpu_s'):6.2f} s")
    lines.append(f"  warm, wall s: {verdict([taken.wall_s for taken in warm], at_most=_TARGET_S)}")
    return lines + [
        f"  warm / import torch, {what[:-2]} ratio: {verdict(paired_ratios(warm, bare, what))}"
        for what in ("wall_s", "cpu_s")
    ]


def _timed(
    argv: Sequence[str], env: dict[str, str], server: int, problem: Callable[[str], str | None] = lambda _: None
) -> Sample:
    """One run; the agent is a child of `server`, so its CPU time is counted there once it has ended."""
    before, began = _cpu(server), time.perf_counter()
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=_LIMIT_S)
    wall, output = time.perf_counter() - began, done.stdout + done.stderr
    if wrong := problem(output):
        raise SystemExit(f"{' '.join(argv)}: {wrong}\n{output}")
    time.sleep(0.2 if server else 0.0)  # the server reaps the agent
    return Sample(wall_s=wall, cpu_s=_cpu(server) - before, rss_bytes=0, exit_code=done.returncode)


def _cpu(server: int) -> float:
    """CPU time of our children that have ended, and of the server with those of its own."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not server:
        return used.ru_utime + used.ru_stime
    fields = Path(f"/proc/{server}/stat").read_bytes().rpartition(b")")[2].split()
    return used.ru_utime + used.ru_stime + sum(map(int, fields[11:15])) / _TICKS
