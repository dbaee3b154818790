"""Another checkout of distlaunch and this one side by side: rows of cli.py, start.py and ssh.py.

    python benchmarks/before_after.py CHECKOUT [--rounds 9] [--workers 1,2,8] [--hosts 4,32,64] [--only cli,start,ssh]
                                        [--no-warm-up] [--own-disks]

CHECKOUT is a directory with the sources of the version to compare with (`git worktree add CHECKOUT REVISION`).
Both run in this environment, with its packages. ssh needs root. Prints a Markdown table with a line for each row:
medians, and the ratio after / before with its range over the rounds.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _free_memory, cli, ssh, start
from benchmarks._measure import ROOT, Contender, environment, ratios, side_by_side, verdict
from testbed.testbed import Testbed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SLOWER = 1.03
"""Highest allowed ratio after / before."""


def row(name: str, unit: str, before: Sequence[float], after: Sequence[float]) -> str:
    """A line of the table."""
    found = verdict(ratios(after, before), at_most=SLOWER)
    return f"| {name} | {unit} | {statistics.median(before):.3f} | {statistics.median(after):.3f} | {found} |"


def measured(name: str, before: Contender, options: argparse.Namespace, units: Sequence[str]) -> Iterator[str]:
    """The rows of a command that differs between the checkouts only in the sources that it runs."""
    here = dataclasses.replace(before, name="after", env={**(before.env or {}), "PYTHONPATH": str(ROOT)})
    samples = side_by_side([before, here], rounds=options.rounds, warm=not options.no_warm_up)
    for unit in units:
        was, now = ([getattr(sample, unit) for sample in samples[which]] for which in ("before", "after"))
        yield row(name, unit.replace("_", ", "), was, now)


def command_line(checkout: Path, options: argparse.Namespace) -> Iterator[str]:
    """CPU time of commands."""
    with tempfile.TemporaryDirectory() as scratch:
        for contender in cli.ours(Path(scratch), runs=1000):
            before = dataclasses.replace(
                contender, name="before", env={**(contender.env or {}), "PYTHONPATH": str(checkout)}
            )
            yield from measured(contender.name, before, options, ["cpu_s"])


def starts(checkout: Path, options: argparse.Namespace) -> Iterator[str]:
    """From the command to a finished all_reduce on this machine."""
    for workers in map(int, options.workers.split(",")):
        with tempfile.TemporaryDirectory() as directory:
            env = environment(directory) | {"PYTHONPATH": str(checkout)}
            for name in start.OURS:
                argv = start.commands(workers, ROOT / "train/reduce.py")[name]
                before = Contender("before", argv, env, directory, check=partial(start.problem, workers))
                yield from measured(f"start, {name}, {workers} workers", before, options, ["wall_s", "cpu_s"])


def over_ssh(checkout: Path, options: argparse.Namespace) -> Iterator[str]:
    """From the command to the last agent started."""
    _free_memory.keep(options.rounds)
    for count in map(int, options.hosts.split(",")):
        # In /tmp: paths of sockets must be short.
        with (
            tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as scratch,
            Testbed().up(count, ssh=True) as testbed,
        ):
            benches = []
            for name, sources in (("before", checkout), ("after", ROOT)):
                Path(scratch, name).mkdir()
                bench = ssh.Bench(testbed.ssh, Path(scratch, name), checkout=sources, own_disks=options.own_disks)
                benches.append(bench)
            taken: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
            for number in range(1 if options.no_warm_up else 0, options.rounds + 1):
                for which, bench in enumerate(benches):
                    bench.new_round()
                    for name, what in (("distlaunch", "all new"), ("again", "again")):
                        busy_s = host_cpu_s()
                        wall_s, _ = bench.measure(name)
                        busy_s = host_cpu_s() - busy_s
                        for unit, value in (("wall, s", wall_s), ("cpu, s", busy_s)) if number else ():
                            taken.setdefault((what, unit), ([], []))[which].append(value)
            for (what, unit), (was, now) in taken.items():
                yield row(f"ssh, {what}, {count} hosts", unit, was, now)


def host_cpu_s() -> float:
    """CPU time of all processes on this host since its start, the test hosts' included; on a quiet host it is ours."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


PARTS = {"cli": command_line, "start": starts, "ssh": over_ssh}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-warm-up", action="store_true", help="count the first round, too")
    parser.add_argument("--workers", default="1,2,8", help="numbers of workers, with commas")
    parser.add_argument("--hosts", default="4,32,64", help="numbers of hosts, with commas")
    parser.add_argument("--own-disks", action="store_true", help="hosts do not share the remote directory")
    parser.add_argument("--only", default=",".join(PARTS), help="which, with commas")
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    if not (checkout / "launcher/__main__.py").is_file():
        parser.error(f"{checkout} has no launcher/__main__.py; give a checkout of distlaunch")
    print("| | | before | after | ratio |\n| --- | --- | --- | --- | --- |", flush=True)
    for name in options.only.split(","):
        for line in PARTS[name](checkout, options):
            print(line, flush=True)


if __name__ == "__main__":
    main()
