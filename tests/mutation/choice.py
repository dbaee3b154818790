"""Which changes to try, and which tests may notice each."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tests.mutation.changes import Change, changes, compiles
from tests.plugins import affected, coverage_report, results, subjects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

PATHS = ("launcher/agent", "launcher/runs/outcome.py", "launcher/backends", "train/trainer")


def files(paths: Iterable[str], root: Path) -> list[str]:
    """The Python files below these paths."""
    found: set[Path] = set()
    for path in paths:
        place = root / path
        found |= {place} if place.is_file() else set(place.rglob("*.py"))
    return sorted(str(path.relative_to(root)) for path in found)


def choose(paths: Iterable[str], count: int, seed: int, root: Path) -> list[Change]:
    """Choose `count` changes, no two on one line; the same ones for the same seed and sources."""
    by_line: dict[tuple[str, int], list[Change]] = defaultdict(list)
    for path in files(paths, root):
        for change in changes(path, (root / path).read_bytes()):
            by_line[path, change.line].append(change)
    lines = sorted(by_line)
    random.Random(seed).shuffle(lines)
    found: list[Change] = []
    for line in lines:
        if len(found) == count:
            break
        able = by_line[line]
        random.Random(f"{seed} {line}").shuffle(able)
        source = (root / line[0]).read_bytes()
        found += [change for change in able if compiles(change.apply(source))][:1]
    return found


class Map(NamedTuple):
    """Which tests ran which lines, in any process."""

    lines: Mapping[str, Mapping[str, set[int]]]
    """By test and file."""

    @classmethod
    def read(cls, directory: Path) -> Map:
        """Read what `--cov-by-test` has written; lines of an unknown test count for all tests that it may have been."""
        names: dict[str, str] = json.loads((directory / "names.json").read_text(encoding="utf-8"))
        found: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for path in (directory / "tests").iterdir():
            lines = coverage_report.read_one(directory, path)
            for key in path.name.split("+"):
                for file, numbers in lines.items():
                    if key in names and numbers:
                        found[names[key]][file] |= numbers
        return cls(found)

    def of(self, change: Change) -> set[str]:
        """The tests that run a change's lines; if these run only on import, all that run anything in the file."""
        wanted = set(range(change.line, change.last_line + 1))
        ran = {test for test, where in self.lines.items() if wanted & where.get(change.path, set())}
        return ran or {test for test, where in self.lines.items() if where.get(change.path)}


def latest_map(directory: Path = results.ALL) -> Path | None:
    """The newest results with coverage by test."""
    found = sorted(path.parent for path in directory.glob("*/coverage/names.json"))
    return found[-1] if found else None


def tests_for(change: Change, known: Map | None, every: Sequence[str], seconds: Mapping[str, float]) -> list[str]:
    """The tests that may notice a change, the shortest first; tests of the test runner are none of them.

    What a fixture runs for several tests is recorded only for the first of them, so others of the same files come next.
    """

    def by_time(tests: Iterable[str]) -> list[str]:
        return sorted(tests, key=lambda test: (seconds.get(test, subjects.typical_s(test)), test))

    ran = known.of(change) & set(every) if known else set()
    if not ran:
        able = affected.affected([change.path]).files
        return by_time(test for test in every if file_of(test) in able)
    files = {file_of(test) for test in ran}
    return by_time(ran) + by_time(test for test in every if file_of(test) in files and test not in ran)


def file_of(test: str) -> str:
    """The file of a test."""
    return test.partition("::")[0]
