"""Would a test notice? Changes one thing at a time in a copy of the project and runs the tests that may notice, until one fails.

    scripts/mutate [--count N] [--seed S] [--paths PATH ...] [--only N ...] [--jobs N] [--budget SECONDS]

Known tools cannot do it here: mutmut runs tests in forks of one process, and what is tested lives in agents, on hosts and in
workers; cosmic-ray changes the files in place and runs all tests for each change.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.mutation import choice
from tests.plugins import coverage_report, scheduling, subjects
from tests.plugins.subjects import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.mutation.changes import Change

FAILED = 1
NOT_FOUND = 4
NOTHING = 5
"""pytest's exit codes."""


class Verdict(NamedTuple):
    """What became of one change."""

    change: Change
    noticed: bool
    by: str
    tests: int
    """How many tests could have noticed."""

    seconds: float


class Copy:
    """The project in a directory of its own, where changes are made."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "project"
        self.number = 0
        self.processes: set[subprocess.Popen[bytes]] = set()
        listed = subprocess.run(
            ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            source, target = ROOT / name, self.root / name
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        (self.root / ".venv").symlink_to(ROOT / ".venv")

    @contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        """With one change; each state of a file has a time of its own, as byte-code is kept by time and size."""
        path = self.root / change.path
        source = path.read_bytes()
        try:
            self.write(path, change.apply(source))
            yield
        finally:
            self.write(path, source)

    def write(self, path: Path, data: bytes) -> None:
        """Write it as of another second than ever before."""
        path.write_bytes(data)
        self.number += 2
        at = time.time() + self.number
        os.utime(path, (at, at))

    def env(self) -> dict[str, str]:
        """The copy's modules come first, also in what tests start."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST") and name != "CI"}
        return {**kept, "PYTHONPATH": str(self.root), "DISTLAUNCH_TEST_RESULTS": str(self.root.parent / "results")}

    def pytest(self, *args: str, limit_s: float) -> tuple[int | None, str]:
        """Its exit code, None when it did not end; and what it said."""
        argv = (sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", *args)
        with (self.root.parent / "output").open("w+b") as file:
            process = subprocess.Popen(
                argv, cwd=self.root, env=self.env(), stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
            self.processes.add(process)
            try:
                code: int | None = process.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end(process)
                sweep(self.root)
                self.processes.discard(process)
            file.seek(0)
            return code, file.read().decode(errors="replace")

    def close(self) -> None:
        """End what runs in it."""
        for process in list(self.processes):
            end(process)
        sweep(self.root)

    def collect(self) -> list[str]:
        """All tests."""
        code, said = self.pytest("--collect-only", limit_s=300)
        if code:
            raise SystemExit(f"error: the tests cannot be collected:\n{said[-3000:]}")
        return [line for line in said.splitlines() if line.startswith("tests/") and "::" in line]


def sweep(root: Path) -> None:
    """End what a wrong program has left running: whatever has the copy in its environment."""
    mark = f"PYTHONPATH={root}\0".encode()
    for entry in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            handle = os.pidfd_open(int(entry))
            try:
                if mark in Path(f"/proc/{entry}/environ").read_bytes():
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a run with all that it has started; what is in sessions of its own ends with its agents."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)  # pytest takes clusters down
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Trial:
    """Runs tests on changes."""

    def __init__(self, args: argparse.Namespace, known: choice.Map | None, seconds: dict[str, float]) -> None:
        self.args, self.known, self.seconds = args, known, seconds
        self.passing: set[str] = set()
        self.lock = threading.Lock()
        self.every: list[str] = []

    def run(self, copy: Copy, change: Change) -> Verdict:
        """Whether any test notices."""
        began = time.monotonic()
        tests = choice.tests_for(change, self.known, self.every, self.seconds)
        within = self.within_budget(tests)
        if not within:
            return Verdict(change, False, "no test runs it", 0, 0.0)
        while True:
            by = self.first_failure(copy, change, within)
            if not by.startswith("tests/") or by in self.passing or self.passes(copy, by):
                break
            with self.lock:  # it fails without the change, too: a test, or a file that cannot be read
                self.every = [test for test in self.every if test != by and not test.startswith(f"{by}::")]
            within = [test for test in within if test in self.every]
            if not within:
                by = ""
                break
        took = time.monotonic() - began
        left = len(tests) - len(within)
        survived = f"survives {len(within)} tests" + (f" ({left} more would take longer than the budget)" if left else "")
        return Verdict(change, bool(by), by or survived, len(tests), took)

    def within_budget(self, tests: Sequence[str]) -> list[str]:
        """As many tests as may be run for one change."""
        found, total = [], 0.0
        for test in tests:
            total += self.seconds.get(test, subjects.typical_s(test))
            if total > self.args.budget:
                break
            found.append(test)
        return found

    def first_failure(self, copy: Copy, change: Change, tests: Sequence[str]) -> str:
        """The first test that fails, or what else ended the run; nothing when all pass."""
        names = copy.root.parent / "tests"
        names.write_text("\n".join(tests), encoding="utf-8")
        expected = sum(self.seconds.get(test, subjects.typical_s(test)) for test in tests)
        with copy.changed(change):
            code, said = copy.pytest("-x", "-rfE", "--tb=no", f"@{names}", limit_s=3 * expected + self.args.patience)
        if code is None:
            return "a run that does not end"
        failed = [
            line.split(" ", 1)[1].partition(" - ")[0] for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))
        ]
        known = next((name for name in failed if name.startswith("tests/")), "")
        if code in (0, NOTHING):
            return ""
        return known or f"pytest's exit code {code}"

    def passes(self, copy: Copy, test: str) -> bool:
        """Whether a test passes without any change; of a file, whether it can be read."""
        code, _ = copy.pytest(test, *([] if "::" in test else ["--collect-only"]), limit_s=600)
        if code == 0:
            with self.lock:
                self.passing.add(test)
        else:
            print(f"note: {test} fails without any change, and counts for nothing", flush=True)
        return code == 0


def diff(change: Change) -> str:
    """The change as a person reads it."""
    source = (ROOT / change.path).read_bytes()
    old, new = (text.decode().splitlines() for text in (source, change.apply(source)))
    return "\n".join(difflib.unified_diff(old, new, change.path, change.path, lineterm="", n=2))


def tell(number: int, verdict: Verdict) -> None:
    """One line per change, with the number by which `--only` knows it."""
    change = verdict.change
    word = "noticed" if verdict.noticed else "SURVIVED"
    where = f"{change.path}:{change.line}"
    print(f"{number:3d} {word:8s} {where}  {change.what}  [{verdict.by}] {verdict.seconds:.0f} s", flush=True)


def conclude(verdicts: Sequence[Verdict]) -> None:
    """By package, then what nobody noticed."""
    total = Counter(coverage_report.package_of(verdict.change.path) for verdict in verdicts)
    noticed = Counter(coverage_report.package_of(verdict.change.path) for verdict in verdicts if verdict.noticed)
    print()
    for name in sorted(total):
        print(f"{name:18s} {noticed[name]:3d} of {total[name]:3d} noticed")
    if verdicts:
        print(f"{'all':18s} {noticed.total():3d} of {total.total():3d} noticed: {100 * noticed.total() / total.total():.0f} %")
    for verdict in verdicts:
        if not verdict.noticed:
            print(f"\n{verdict.change.path}:{verdict.change.line}  {verdict.change.what}  [{verdict.by}]\n{diff(verdict.change)}")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="scripts/mutate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--count", type=int, default=10, help="how many changes (default: 10)")
    top.add_argument("--seed", type=int, default=1, help="which ones (default: 1)")
    top.add_argument("--paths", nargs="+", default=list(choice.PATHS), help=f"where (default: {' '.join(choice.PATHS)})")
    top.add_argument("--only", type=int, nargs="+", metavar="N", help="of these changes, those with these numbers")
    top.add_argument("--jobs", type=int, default=1, help="how many at a time, each in a copy of its own (default: 1)")
    top.add_argument("--budget", type=float, default=900, help="seconds of tests at most for one change (default: 900)")
    top.add_argument("--patience", type=float, default=180, help="seconds beyond three times what its tests take (default: 180)")
    top.add_argument("--coverage", type=Path, help="the directory that `--cov-by-test` has left (default: the newest)")
    top.add_argument("--list", action="store_true", help="print the changes, and run nothing")
    return top


#: What ends it early.
ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def interrupt(_number: int, _frame: object) -> None:
    """End like at Ctrl-C."""
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
    # Its name is known before it is there: a signal in between would leave what tempfile has made and not yet told.
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
    """All changes, as many at a time as there are copies."""
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
            tell(number, verdict)

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
