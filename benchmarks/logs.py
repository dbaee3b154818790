"""Workers' output through agent and launcher, against the same processes through `cat`, and other launchers.

    python benchmarks/logs.py [--rounds 3] [--ranks 8] [--lines 125000] [--no-peers]

Every rank writes `--lines` lines of 80 bytes, all ranks at once. Lines per second count from the first byte written to
the last one in the file on stdout. CPU time is that of agent and launcher (of the cats), without the ranks', less the
median of runs whose ranks prepare these lines and write nothing, one in each round. Every line is checked, in order, on
stdout and in the run's stream.

The others keep and show all ranks, too: torchrun with `--redirects 3 --tee 3`, and torchx, which does so by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _free_memory
from benchmarks._measure import ROOT, Contender, environment, measure, ratios, verdict
from benchmarks._memory import Peak
from benchmarks._workers.lines import text

PRODUCER = ROOT / "benchmarks/_workers/lines.py"
LAUNCHER_MAX_BYTES = 100_000_000
TARGETS = 0.3, 3.0
"""Speed, at least, and CPU time, at most, as ratios to `cat`."""

_PEERS_MARK = re.compile(rb"^(?:\S+/\d+ )?\[(?:default)?(\d+)\]:", re.MULTILINE)
"""What torchrun and torchx write before a line: `[default3]:text`, `lines/0 [3]:text`."""

_MARKED = re.compile(rb"^(?:\[0:(\d+)\]|0\.(\d+)\|)([ +])(.*)$", re.MULTILINE)
"""A line on the terminal, `[0:3] text`, or a record of the agent stream, `0.3| text` or `0.3|+text`."""


@dataclass(frozen=True)
class Passage:
    """The measurements of one run."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    agent_cpu_s: float = 0.0
    launcher_bytes: int = 0
    agent_bytes: int = 0
    lost: str = "0"

    @property
    def all_cpu_s(self) -> float:
        """CPU time of everything between the ranks and the file."""
        return self.cpu_s + self.agent_cpu_s


def times(directory: Path, ranks: int, arrived: list[Path]) -> float:
    """Seconds from the first rank's start until the last byte was written, by a rank or to a file."""
    said = [json.loads((directory / f"times-{rank}").read_text()) for rank in range(ranks)]
    end = max([one["ended"] for one in said] + [path.stat().st_mtime for path in arrived])
    return float(end - min(one["began"] for one in said))


def missing(got: bytes, ranks: int, lines: int) -> str:
    """How many of the ranks' lines are not in `got`, a stream or terminal of all ranks, and whether order was kept."""
    found = defaultdict(list)
    for mark in _MARKED.finditer(got):
        found[int(mark[1] or mark[2])].append(mark[4] if mark[3] == b"+" else mark[4] + b"\n")
    lost, disorder = 0, 0
    for rank in range(ranks):
        expected, arrived = text(rank, lines), b"".join(found[rank])
        if arrived != expected:
            absent = len(set(expected.split(b"\n")) - set(arrived.split(b"\n")))
            lost, disorder = lost + absent, disorder + (absent == 0)
    return f"{lost}" + (f", {disorder} ranks not in order" if disorder else "")


def plain(scratch: Path, ranks: int, lines: int) -> Passage:
    """The same producers, each through a `cat` of its own into a file."""
    directory = Path(tempfile.mkdtemp(dir=scratch))
    env = {
        **environment(scratch),
        "BENCH_DIRECTORY": str(directory),
        "BENCH_LINES": str(lines),
        "WORLD_SIZE": str(ranks),
    }
    producers, cats = [], []
    for rank in range(ranks):
        argv = [sys.executable, str(PRODUCER)]
        producers.append(subprocess.Popen(argv, env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE))
        with (directory / f"out-{rank}").open("wb") as out:
            cats.append(subprocess.Popen(["cat"], stdin=producers[-1].stdout, stdout=out))
        producers[-1].stdout.close()  # type: ignore[union-attr]  # it is a pipe; only the cat reads it
    cpu_s = 0.0
    for cat in cats:
        _, _, usage = os.wait4(cat.pid, 0)
        cat.returncode = 0
        cpu_s += usage.ru_utime + usage.ru_stime
    if any(producer.wait(60) for producer in producers):
        raise RuntimeError("a producer failed")
    arrived = [directory / f"out-{rank}" for rank in range(ranks)]
    lost = sum(path.read_bytes() != text(rank, lines) for rank, path in enumerate(arrived))
    return Passage(times(directory, ranks, arrived), cpu_s, lost=f"{lost} files" if lost else "0")


def surroundings(directory: Path, lines: int, *, silent: bool) -> dict[str, str]:
    """The producers' variables."""
    more = {"BENCH_SILENT": "1"} if silent else {}
    return {**environment(directory), "BENCH_DIRECTORY": str(directory), "BENCH_LINES": str(lines), **more}


def launched(scratch: Path, ranks: int, lines: int, shown: str, *, silent: bool = False) -> Passage:
    """The producers under distlaunch; `shown` is the value of --log-ranks."""
    directory = Path(tempfile.mkdtemp(dir=scratch))
    env = surroundings(directory, lines, silent=silent)
    argv = [
        sys.executable,
        "-m",
        "launcher",
        "local",
        "--nproc-per-node",
        str(ranks),
        "--log-ranks",
        shown,
        str(PRODUCER),
    ]
    peaks: list[Peak] = []

    def agent_pid() -> int | None:
        for path in directory.glob("runs/*/nodes/0/agent.json"):
            told = path.read_text()
            return json.loads(told)["pid"] if told.endswith("}") else None
        return None

    out = directory / "out"
    with out.open("wb") as file:
        contender = Contender("distlaunch", argv, env, str(directory), limit_s=300)
        sample = measure(contender, stdout=file, watch=lambda pid: peaks.extend([Peak(lambda: pid), Peak(agent_pid)]))
    if sample.exit_code:
        raise RuntimeError(f"exit code {sample.exit_code}\n{sample.output[-4000:]}")
    launcher, agent = peaks
    stream = next(directory.glob("runs/*/nodes/0/stream")).read_bytes()
    written = 0 if silent else lines
    lost = missing(stream, ranks, written)
    if shown == "all":
        on_stdout = missing(out.read_bytes(), ranks, written)
    else:
        on_stdout = "0" if out.read_bytes() == text(0, written) else "some of rank 0"
    lost = lost if lost == on_stdout else f"{lost} in the stream, {on_stdout} on stdout"
    seconds = times(directory, ranks, [out])
    return Passage(seconds, sample.own_cpu_s, agent.cpu_s, launcher.rss_bytes, agent.rss_bytes, lost)


def peers(ranks: int) -> dict[str, list[str]]:
    """The commands of other launchers that are here, without the script."""
    beside = str(Path(sys.executable).parent)
    found = {}
    if torchrun := shutil.which("torchrun", path=beside) or shutil.which("torchrun"):
        tee = ["--redirects", "3", "--tee", "3", "--log-dir", "logs"]
        found["torchrun --tee 3"] = [torchrun, "--standalone", "--nproc-per-node", str(ranks), *tee]
    if torchx := shutil.which("torchx", path=beside) or shutil.which("torchx"):
        found["torchx"] = [torchx, "run", "-s", "local_cwd", "dist.ddp", "-j", f"1x{ranks}", "--script"]
    return found


def other(scratch: Path, ranks: int, lines: int, argv: list[str], *, silent: bool = False) -> Passage:
    """The producers under another launcher, which shows all ranks."""
    directory = Path(tempfile.mkdtemp(dir=scratch))
    env = surroundings(directory, lines, silent=silent)
    out = directory / "out"
    with out.open("wb") as file:
        both = ("sh", "-c", 'exec "$0" "$@" 2>&1')  # torchx shows the lines on stderr
        contender = Contender(argv[0], [*both, *argv, str(PRODUCER)], env, str(directory), limit_s=300)
        sample = measure(contender, stdout=file)
    if sample.exit_code:
        raise RuntimeError(f"{argv[0]}: exit code {sample.exit_code}\n{sample.output[-4000:]}")
    of_ranks = [json.loads((directory / f"times-{rank}").read_text())["all_cpu_s"] for rank in range(ranks)]
    lost = missing(_PEERS_MARK.sub(rb"[0:\1] ", out.read_bytes()), ranks, 0 if silent else lines)
    return Passage(times(directory, ranks, [out]), sample.cpu_s - sum(of_ranks), lost=lost)


def less(passages: list[Passage], idle: list[Passage]) -> list[Passage]:
    """The same without the median CPU times of the idle runs."""
    cpu_s, agent_cpu_s = (statistics.median(getattr(one, name) for one in idle) for name in ("cpu_s", "agent_cpu_s"))
    return [replace(one, cpu_s=one.cpu_s - cpu_s, agent_cpu_s=one.agent_cpu_s - agent_cpu_s) for one in passages]


def show(taken: dict[str, list[Passage]], total: int) -> str:
    """Medians, and paired ratios to `cat`."""
    base = taken["cat"]
    lines = []
    for name, passages in taken.items():
        speed = statistics.median(total / one.seconds for one in passages)
        cpu_s = statistics.median(one.all_cpu_s for one in passages)
        lost = next((one.lost for one in passages if one.lost != "0"), "0")
        lines.append(f"{name:<26} {speed:12,.0f} lines/s   cpu {cpu_s:6.2f} s   lost {lost}")
        if passages is base:
            continue
        at_least, at_most = TARGETS if name.startswith("distlaunch") else (None, None)
        faster = verdict(ratios([two.seconds for two in base], [one.seconds for one in passages]), at_least=at_least)
        costs = ratios([one.all_cpu_s for one in passages], [max(two.all_cpu_s, 0.001) for two in base])
        lines.append(f"    ratio to cat: speed {faster}, cpu {verdict(costs, at_most=at_most)}")
        launcher, agent = (max(getattr(one, field) for one in passages) for field in ("launcher_bytes", "agent_bytes"))
        if not agent:
            continue
        met = "met" if launcher < LAUNCHER_MAX_BYTES else "MISSED"
        parts = [statistics.median(getattr(one, field) for one in passages) for field in ("cpu_s", "agent_cpu_s")]
        lines.append(f"    cpu: launcher {parts[0]:.2f} s, agent {parts[1]:.2f} s")
        lines.append(
            f"    peak memory: launcher {launcher / 1e6:.1f} MB (target < 100: {met}), agent {agent / 1e6:.1f} MB"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--lines", type=int, default=125_000, help="of each rank")
    parser.add_argument("--no-peers", action="store_true", help="without torchrun and torchx, which take minutes")
    options = parser.parse_args()
    others = {} if options.no_peers else peers(options.ranks)
    taken: dict[str, list[Passage]] = defaultdict(list)
    idle: dict[str, list[Passage]] = defaultdict(list)
    _free_memory.keep(options.rounds)
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as directory:
            scratch = Path(directory)
            taken["cat"].append(plain(scratch, options.ranks, options.lines))
            for shown, name in (("all", "distlaunch, all ranks"), ("0", "distlaunch, rank 0 shown")):
                idle[name].append(launched(scratch, options.ranks, options.lines, shown, silent=True))
                taken[name].append(launched(scratch, options.ranks, options.lines, shown))
            for name, argv in others.items():
                idle[name].append(other(scratch, options.ranks, options.lines, argv, silent=True))
                taken[name].append(other(scratch, options.ranks, options.lines, argv))
    for name, runs in idle.items():
        taken[name] = less(taken[name], runs)
    total = options.ranks * options.lines
    print(f"{total:,} lines of 80 bytes from {options.ranks} ranks, {options.rounds} rounds, medians")
    print(show(taken, total))


if __name__ == "__main__":
    main()
