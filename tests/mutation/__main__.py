"""Would a test notice? Changes one thing at a time in a copy of the project, and runs tests until one fails.

    scripts/mutate [--count N] [--seed S] [--paths PATH ...] [--only N ...] [--jobs N] [--budget SECONDS]

Known tools cannot do it here: mutmut runs tests in forks of one process, but the code under test runs in agents, on
hosts and in workers; cosmic-ray changes files in place and runs all tests for each change.
"""

from __future__ import annotations

import argparse
import difflib
import json
import secrets
import shutil
import signal
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.mutation import choice
from tests.mutation.copies import Copy
from tests.mutation.trial import Trial, Verdict
from tests.plugins import coverage_report, scheduling
from tests.plugins.subjects import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.mutation.changes import Change


def diff(change: Change) -> str:
    """The change as a diff."""
    source = (ROOT / change.path).read_bytes()
    old, new = (text.decode().splitlines() for text in (source, change.apply(source)))
    return "\n".join(difflib.unified_diff(old, new, change.path, change.path, lineterm="", n=2))


def print_verdict(number: int, verdict: Verdict) -> None:
    """Print a line per change, with its number for `--only`."""
    change = verdict.change
    word = "noticed" if verdict.noticed else "SURVIVED"
    where = f"{change.path}:{change.line}"
    print(f"{number:3d} {word:8s} {where}  {change.what}  [{verdict.by}] {verdict.seconds:.0f} s", flush=True)


def conclude(verdicts: Sequence[Verdict]) -> None:
    """Print the totals by package, then the changes that no test noticed."""
    total = Counter(coverage_report.package_of(verdict.change.path) for verdict in verdicts)
    noticed = Counter(coverage_report.package_of(verdict.change.path) for verdict in verdicts if verdict.noticed)
    print()
    for name in sorted(total):
        print(f"{name:18s} {noticed[name]:3d} of {total[name]:3d} noticed")
    if verdicts:
        share = 100 * noticed.total() / total.total()
        print(f"{'all':18s} {noticed.total():3d} of {total.total():3d} noticed: {share:.0f} %")
    for verdict in verdicts:
        if not verdict.noticed:
            change = verdict.change
            print(f"\n{change.path}:{change.line}  {change.what}  [{verdict.by}]\n{diff(change)}")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="scripts/mutate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--count", type=int, default=10, help="how many changes (default: 10)")
    top.add_argument("--seed", type=int, default=1, help="which ones (default: 1)")
    top.add_argument(
        "--paths", nargs="+", default=list(choice.PATHS), help=f"where (default: {' '.join(choice.PATHS)})"
    )
    top.add_argument("--only", type=int, nargs="+", metavar="N", help="of these changes, those with these numbers")
    top.add_argument("--jobs", type=int, default=1, help="how many at a time, each in a copy of its own (default: 1)")
    top.add_argument("--budget", type=float, default=900, help="seconds of tests at most for one change (default: 900)")
    top.add_argument(
        "--patience", type=float, default=180, help="seconds beyond three times what its tests take (default: 180)"
    )
    top.add_argument("--coverage", type=Path, help="the directory that `--cov-by-test` has left (default: the newest)")
    top.add_argument("--list", action="store_true", help="print the changes, and run nothing")
    return top


#: Signals that end it early.
ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def interrupt(_number: int, _frame: object) -> None:
    """End as on Ctrl-C."""
    raise KeyboardInterrupt


def main(words: Sequence[str]) -> int:
    """Try the changes."""
    args = parser().parse_args(words)
    chosen = dict(enumerate(choice.choose(args.paths, args.count, args.seed, ROOT), start=1))
    if args.only:
        chosen = {number: chosen[number] for number in args.only if number in chosen}
    if args.list:
        for number, change in chosen.items():
            print(f"{number:3d} {change.path}:{change.line}  {change.what}")
        return 0
    for number in ENDS:
        signal.signal(number, interrupt)
    place = args.coverage or choice.latest_map()
    known = choice.Map.read(place) if place else None
    print(
        f"tests by line: {place}"
        if place
        else "no `scripts/test --cov-by-test` yet: each change is tried with all tests of its subjects"
    )
    seconds = read_seconds()
    copies: list[Copy] = []
    # The name is known before it is created: a signal could come between tempfile creating one and returning it.
    directory = Path(tempfile.gettempdir(), f"distlaunch-mutants-{secrets.token_hex(8)}")
    try:
        try:
            directory.mkdir(mode=0o700)
            copies += [Copy(directory / str(number)) for number in range(args.jobs)]
            trial = Trial(args, known, seconds)
            trial.every = copies[0].collect()
            verdicts = work(trial, copies, chosen)
        finally:
            for number in ENDS:
                signal.signal(number, signal.SIG_IGN)
            for copy in copies:
                copy.close()
            shutil.rmtree(directory, ignore_errors=True)
    except KeyboardInterrupt:
        print("interrupted; nothing is left", file=sys.stderr)
        return 130
    conclude(verdicts)
    return 0


def work(trial: Trial, copies: list[Copy], chosen: Mapping[int, Change]) -> list[Verdict]:
    """Try all changes, as many at a time as there are copies."""
    free = list(copies)
    verdicts: list[Verdict] = []

    def one(number: int) -> None:
        with trial.lock:
            copy = free.pop()
        try:
            verdict = trial.run(copy, chosen[number])
        finally:
            with trial.lock:
                free.append(copy)
        with trial.lock:
            verdicts.append(verdict)
            print_verdict(number, verdict)

    if len(copies) == 1:
        for number in chosen:
            one(number)
    else:
        with ThreadPoolExecutor(len(copies)) as pool:
            try:
                list(pool.map(one, chosen))
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                for copy in copies:
                    copy.close()
                raise
    return verdicts


def read_seconds() -> dict[str, float]:
    """How long tests took when they last ran, from pytest's cache."""
    with suppress(OSError, ValueError):
        found = json.loads((ROOT / ".pytest_cache/v" / scheduling.CACHE).read_text(encoding="utf-8"))
        return {str(name): float(took) for name, took in found.items()}
    return {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
