"""What the jobs of tests run, and what is read from their output."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Result

WAITS = """
import os, signal, sys, time
def end(*_):
    left = float(open(os.environ["DISTLAUNCH_DEADLINE_FILE"]).read()) - time.time()
    print(f"told, {left:.1f} s left", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True:
    signal.pause()
"""
"""Waits for SIGTERM, and prints how long it then has."""

AGAIN = """
import os, signal, sys
attempt = os.environ.get("DISTLAUNCH_ATTEMPT", "0")
print(f"ready {attempt} after {os.environ.get('DISTLAUNCH_ATTEMPT_REASON', 'nothing')}", flush=True)
while attempt < sys.argv[1]:
    signal.pause()
"""
"""Ends in the attempt of that number."""

HOLDS = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print("ready", flush=True)
signal.sigwait({signal.SIGUSR1})
"""
"""Succeeds when it gets SIGUSR1."""

SHOW = """
import os, sys
names = "RANK LOCAL_RANK WORLD_SIZE SLURMD_NODENAME CUDA_VISIBLE_DEVICES SLURM_CPUS_PER_TASK OMP_NUM_THREADS"
print("found", *(os.environ.get(name, "-") for name in names.split()), *sys.argv[1:], flush=True)
"""
"""Prints what a worker finds."""


def seconds_left(text: str) -> list[float]:
    """What the workers of `WAITS` have printed."""
    return [float(number) for number in re.findall(r"told, (-?[\d.]+) s left", text)]


def found(done: Result) -> list[list[str]]:
    """What each worker of `SHOW` has printed, in rank order."""
    assert done.exit_code == 0, done.stderr
    rows = (line.partition("found ")[2].split() for line in done.stdout.splitlines() if "found " in line)
    return sorted(rows, key=lambda words: int(words[0]))


def printed(directory: Path) -> list[str]:
    """What the workers of a run's nodes have written, in node order."""
    paths = sorted(directory.glob("nodes/*/stream"))
    return [line for path in paths for line in path.read_text().splitlines() if re.match(r"\[\d+:\d+\] ", line)]
