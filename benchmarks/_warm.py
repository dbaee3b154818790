"""A start from what an earlier run has left standing, beside the import of torch alone."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
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
    sockets = tempfile.TemporaryDirectory(dir="/tmp")  # a socket has a short path
    env = {**environment(scratch), "DISTLAUNCH_WARM_DIR": sockets.name}
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
        sockets.cleanup()
        with contextlib.suppress(ChildProcessError):  # what was left to this process
            while os.waitpid(-1, 0):
                pass
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
    """One run; wall time ends when all ranks have printed the sum that `problem` checks, if there is a server.

    The agent is a child of `server`, so its CPU time is counted there once it has ended.
    """
    before, began, output = _cpu(server), time.perf_counter(), ""
    wall = None if server else 0.0
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            output += line
            if wall is None and problem(output) is None:
                wall = time.perf_counter() - began
        code = process.wait(timeout=_LIMIT_S)
    if code or wall is None:
        raise SystemExit(f"{' '.join(argv)}: exit code {code}, {problem(output)}\n{output}")
    time.sleep(0.2 if server else 0.0)  # the server reaps the agent
    return Sample(wall_s=wall or time.perf_counter() - began, cpu_s=_cpu(server) - before, rss_bytes=0, exit_code=code)


def _cpu(server: int) -> float:
    """CPU time of our children that have ended, and of the server with those of its own."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not server:
        return used.ru_utime + used.ru_stime
    fields = Path(f"/proc/{server}/stat").read_bytes().rpartition(b")")[2].split()
    return used.ru_utime + used.ru_stime + sum(map(int, fields[11:15])) / _TICKS
