"""The verdict on one change: the first test that fails with it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from tests.mutation import choice
from tests.plugins import subjects

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tests.mutation.changes import Change
    from tests.mutation.copies import Copy

FAILED = 1

NOT_FOUND = 4

NOTHING = 5
"""pytest's exit codes."""


class Verdict(NamedTuple):
    """The result of one change."""

    change: Change
    noticed: bool
    by: str
    tests: int
    """How many tests could have noticed."""

    seconds: float


class Trial:
    """Runs tests on changes."""

    def __init__(self, args: argparse.Namespace, known: choice.Map | None, seconds: dict[str, float]) -> None:
        self.args, self.known, self.seconds = args, known, seconds
        self.passing: set[str] = set()
        self.lock = threading.Lock()
        self.every: list[str] = []

    def run(self, copy: Copy, change: Change) -> Verdict:
        """Find whether any test notices a change."""
        began = time.monotonic()
        tests = choice.tests_for(change, self.known, self.every, self.seconds)
        within = self.within_budget(tests)
        if not within:
            return Verdict(change, False, "no test runs it", 0, 0.0)
        while True:
            by = self.first_failure(copy, change, within)
            if not by.startswith("tests/") or by in self.passing or self.passes(copy, by):
                break
            with self.lock:  # it fails without the change too: a test, or a file that cannot be imported
                self.every = [test for test in self.every if test != by and not test.startswith(f"{by}::")]
            within = [test for test in within if test in self.every]
            if not within:
                by = ""
                break
        took = time.monotonic() - began
        left = len(tests) - len(within)
        survived = f"survives {len(within)} tests" + (
            f" ({left} more would take longer than the budget)" if left else ""
        )
        return Verdict(change, bool(by), by or survived, len(tests), took)

    def within_budget(self, tests: Sequence[str]) -> list[str]:
        """The tests that fit into the budget of a change."""
        found, total = [], 0.0
        for test in tests:
            total += self.seconds.get(test, subjects.typical_s(test))
            if total > self.args.budget:
                break
            found.append(test)
        return found

    def first_failure(self, copy: Copy, change: Change, tests: Sequence[str]) -> str:
        """The first test that fails, or what else ended the run; empty if all pass."""
        names = copy.root.parent / "tests"
        names.write_text("\n".join(tests), encoding="utf-8")
        expected = sum(self.seconds.get(test, subjects.typical_s(test)) for test in tests)
        with copy.changed(change):
            code, output = copy.pytest("-x", "-rfE", "--tb=no", f"@{names}", limit_s=3 * expected + self.args.patience)
        if code is None:
            return "a run that does not end"
        failed = [
            line.split(" ", 1)[1].partition(" - ")[0]
            for line in output.splitlines()
            if line.startswith(("FAILED ", "ERROR "))
        ]
        known = next((name for name in failed if name.startswith("tests/")), "")
        if code in (0, NOTHING):
            return ""
        return known or f"pytest's exit code {code}"

    def passes(self, copy: Copy, test: str) -> bool:
        """Whether a test passes without any change; for a file, whether it can be imported."""
        code, _ = copy.pytest(test, *([] if "::" in test else ["--collect-only"]), limit_s=600)
        if code == 0:
            with self.lock:
                self.passing.add(test)
        else:
            print(f"note: {test} fails without any change, and does not count", flush=True)
        return code == 0
