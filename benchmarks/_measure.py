"""Measures commands side by side: interleaved, with all that they start, as medians of paired ratios.

The measuring process is a child subreaper: processes that a command leaves behind become its children and are waited
for, so that the CPU time of detached processes counts. A process with children of its own, such as a testbed's
daemons, measures the command alone.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from benchmarks import _free_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent

TIMED_OUT = 124
"""Exit code of a command that was killed at its limit."""

_PR_SET_CHILD_SUBREAPER = 36
_ADOPTED_S = 15.0
"""How long processes that a command leaves behind may run."""


@dataclass(frozen=True)
class Sample:
    """One run of one command."""

    wall_s: float
    """Until the command itself exits."""

    cpu_s: float
    """User and system time of the command and of everything that it started, detached or not."""

    rss_bytes: int
    """Highest resident set of the largest single process among the command and those that it waited for."""

    exit_code: int
    output: str = ""
    """Stdout and stderr, in the order of writing."""

    own_cpu_s: float = 0.0
    """The part of `cpu_s` of the command and the children that it waited for."""


@dataclass(frozen=True)
class Contender:
    """A command to measure, with what to do before each of its runs."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    before: Callable[[], None] | None = None
    check: Callable[[str], str | None] | None = None
    """What is wrong with a run's output; None if nothing is."""

    limit_s: float = 600.0


def environment(scratch: str | Path) -> dict[str, str]:
    """Variables for every contender: this checkout and its interpreter first, bytecode kept, files below `scratch`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("DISTLAUNCH_")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    path = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    settings = {"DISTLAUNCH_RUNS_DIR": "runs", "DISTLAUNCH_SYSTEM_CONFIG": "none.toml"}
    directories = dict.fromkeys(("HOME", "TMPDIR", "XDG_CONFIG_HOME"), str(scratch))
    return (
        env | {"PATH": path, "PYTHONPATH": str(ROOT)} | {k: f"{scratch}/{v}" for k, v in settings.items()} | directories
    )


def cpu_model() -> str:
    """The model of this host's CPU, and whether it computes in bf16: figures of two kinds do not compare."""
    told = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    model = re.search(r"^model name\s*: (.*)$", told, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.*)$", told, re.MULTILINE)
    kinds = [flag for flag in ("avx512_bf16", "amx_bf16") if flags and flag in flags[1].split()]
    return f"{model[1].strip() if model else 'unknown CPU'}, {' and '.join(kinds) or 'without avx512_bf16'}"


def launched(ranks: int) -> list[str]:
    """The command prefix that runs a script on `ranks` local ranks, where the launcher itself is not measured."""
    options = ["--nproc-per-node", str(ranks), "--preload", "torchvision.models"]
    return [sys.executable, "-m", "launcher", "local", *options]


def measure(
    contender: Contender,
    *,
    stdout: IO[bytes] | None = None,
    watch: Callable[[int], None] | None = None,
    detached: bool = True,
) -> Sample:
    """Run the command once.

    `stdout` takes its output instead of the sample; `watch` is called with its pid once it runs. Without `detached`,
    processes that it leaves behind keep running and do not count.
    """
    if contender.before:
        contender.before()
    if detached:
        if others := children():
            raise RuntimeError(f"{contender.name}: our own processes {others} would be taken for what it leaves behind")
        _become_subreaper()
    with tempfile.TemporaryFile() as both:
        began = time.monotonic()
        process = subprocess.Popen(
            contender.argv,
            env=contender.env,
            cwd=contender.cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout or both,
            stderr=both,
            start_new_session=True,
        )
        if watch:
            watch(process.pid)
        in_time = _await_end(process.pid, contender.limit_s)
        wall_s = time.monotonic() - began
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        own_cpu_s = usage.ru_utime + usage.ru_stime
        adopted_s = _wait_for_adopted(contender.name, _ADOPTED_S if in_time else 0.0) if detached else 0.0
        both.seek(0)
        output = both.read().decode(errors="replace")
    code = process.returncode if in_time else TIMED_OUT
    return Sample(wall_s, own_cpu_s + adopted_s, usage.ru_maxrss * 1024, code, output, own_cpu_s)


def side_by_side(
    contenders: Sequence[Contender], *, rounds: int, warm: bool = True, detached: bool = True
) -> dict[str, list[Sample]]:
    """Run all contenders in turn, `rounds` times, after one round that warms caches and does not count.

    Interleaving spreads other load over all of them; compare sample by sample, see `paired_ratios`.
    """
    _free_memory.keep(rounds)
    samples: dict[str, list[Sample]] = {contender.name: [] for contender in contenders}
    for round_number in range(0 if warm else 1, rounds + 1):
        for contender in contenders:
            sample = measure(contender, detached=detached)
            wrong = f"exit code {sample.exit_code}" if sample.exit_code else None
            wrong = wrong or (contender.check(sample.output) if contender.check else None)
            if wrong:
                raise RuntimeError(f"{contender.name}: {wrong}: {' '.join(contender.argv)}\n{sample.output[-4000:]}")
            if round_number:
                samples[contender.name].append(sample)
    return samples


def median(samples: Sequence[Sample], what: str) -> float:
    """The median of one of the samples' numbers."""
    return float(statistics.median(getattr(sample, what) for sample in samples))


def paired_ratios(samples: Sequence[Sample], base: Sequence[Sample], what: str) -> list[float]:
    """Each round's sample / base."""
    return ratios([getattr(sample, what) for sample in samples], [getattr(sample, what) for sample in base])


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Each round's ratio."""
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]


def show(samples: Mapping[str, Sequence[Sample]], *, base: str, at_most: Mapping[str, float] | None = None) -> str:
    """A table of medians, with each contender's CPU time as a ratio to the base's, its range, and the target."""
    width = max(map(len, samples))
    lines = [f"{'command':<{width}}  {'cpu s':>8}  {'wall s':>8}  {'rss MB':>8}  cpu ratio"]
    for name, taken in samples.items():
        found = paired_ratios(taken, samples[base], "cpu_s")
        numbers = (
            f"{median(taken, 'cpu_s'):8.3f}  {median(taken, 'wall_s'):8.3f}  {median(taken, 'rss_bytes') / 1e6:8.1f}"
        )
        lines.append(f"{name:<{width}}  {numbers}  {verdict(found, at_most=(at_most or {}).get(name))}")
    return "\n".join(lines)


def verdict(values: Sequence[float], *, at_most: float | None = None, at_least: float | None = None) -> str:
    """The median of the rounds' values with their range, and whether the median meets the target."""
    middle = statistics.median(values)
    said = [f"{min(values):.3f} to {max(values):.3f}"] if len(values) > 1 else []
    if at_most is not None:
        said.append(f"target <= {at_most:g}: {'met' if middle <= at_most else 'MISSED'}")
    if at_least is not None:
        said.append(f"target >= {at_least:g}: {'met' if middle >= at_least else 'MISSED'}")
    return f"{middle:.3f}" + (f" ({'; '.join(said)})" if said else "")


def children() -> list[int]:
    """Processes whose parent is this one."""
    return [pid for pid, parent in _parents().items() if parent == os.getpid()]


def descendants() -> list[int]:
    """All descendants of this process."""
    parents, found = _parents(), [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def _parents() -> dict[int, int]:
    parents = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(directory.name)] = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return parents


def _become_subreaper() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _await_end(pid: int, limit_s: float) -> bool:
    """Wait until the process has exited, without reaping it; kill it at the limit."""
    fd = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    in_time = bool(poll.poll(limit_s * 1000))
    if not in_time:
        os.kill(pid, signal.SIGKILL)
    os.close(fd)
    return in_time


def _wait_for_adopted(name: str, limit_s: float) -> float:
    """CPU time of the processes that the command has left behind, once they exit; the limit kills and reports them."""
    cpu_s, limit = 0.0, time.monotonic() + limit_s
    while True:
        try:
            pid, _, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return cpu_s
        if pid:
            cpu_s += usage.ru_utime + usage.ru_stime
            continue
        if time.monotonic() >= limit:
            left = children()
            if limit_s:
                print(f"{name}: still there {limit_s:.0f} s after its end, killed: {left}", file=sys.stderr)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            limit = time.monotonic() + 1.0
        time.sleep(0.002)
