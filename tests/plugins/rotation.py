"""A run of everything has all fast tests, and of the others some, which differ by commit; by name all of them run.

Of each file's tests on clusters these are a tenth, and of its other tests outside the fast tier an eighth. Of tests
marked `rotating` there is one per function, and of the public's scripts there are four.
"""

from __future__ import annotations

import subprocess
import zlib
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from tests.plugins import selection, subjects

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest

SUBJECT = "thirdparty"
T = TypeVar("T")
LOCAL = "test_local.py"
"""The other files need clusters of their own."""


MARK = "rotating"
CLUSTERS = ("k8s", "slurm", "ssh")
"""The marks of tests on clusters."""

ON_CLUSTERS, SLOW = 10, 8
"""A full run has one in so many of a file's tests."""

MEASURED = 4
"""CI measures coverage at one of so many commits: it takes a quarter of the time."""

FEW = 1
"""How many tests of a function with that mark."""


class Rotation:
    """Deselects the tests whose turn it is not."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Remove what is not wanted."""
        unwanted = {*others_scripts(items)} if not is_requested(config, SUBJECT) else set()
        for _, tests in groupby((item for item in items if item.get_closest_marker(MARK)), function_of):
            known = [*tests]
            if not is_requested(config, subjects.subject_of(selection.relative(known[0].path))):
                unwanted |= {*known} - {*few(known, commit())}
        unwanted |= {*others_of_files(items, config)} if not names_a_file(config) else set()
        if unwanted:
            config.hook.pytest_deselected(items=[item for item in items if item in unwanted])
            items[:] = [item for item in items if item not in unwanted]

    def pytest_report_header(self) -> list[str]:
        marked = (
            f"of each file's tests on clusters a tenth, of its other slow ones an eighth, of those marked {MARK} {FEW}"
        )
        marked += " per function: others at each commit, all of them if requested by subject"
        if is_requested(self.config, SUBJECT):
            return [marked]
        names = ", ".join(turn())
        return [f"the public's scripts of this commit, of all of them: {names} (scripts/test {SUBJECT}: all)", marked]


def others_scripts(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """The tests of scripts whose turn it is not."""
    tests = [item for item in items if is_script(item)]
    names = turn() if tests else ()
    yield from (item for item in tests if item.path.name != LOCAL or name_of(item) not in names)


def others_of_files(items: Sequence[pytest.Item], config: pytest.Config) -> Iterator[pytest.Item]:
    """The slow tests of each file whose turn it is not."""
    slow = [item for item in items if not (selection.is_fast(item) or item.get_closest_marker(MARK) or is_script(item))]
    for (path, every), tests in groupby(sorted(slow, key=file_and_part), file_and_part):
        if not is_requested(config, subjects.subject_of(path)):
            number = commit() // MEASURED  # or all that are measured would have the same ones
            yield from (item for at, item in enumerate(tests) if not has_its_turn(at, number, every, path))


def has_its_turn(at: int, number: int, every: int, path: str) -> bool:
    """Whether a file's test has its turn at a commit of that number; of short files, not all have theirs at once."""
    return (at + number + zlib.crc32(path.encode())) % every == 0


def file_and_part(item: pytest.Item) -> tuple[str, int]:
    """A test's file, and of how many such tests in it a full run has one."""
    return selection.relative(item.path), ON_CLUSTERS if any(map(item.get_closest_marker, CLUSTERS)) else SLOW


def few(tests: Sequence[T], number: int) -> list[T]:
    """Those whose turn it is at a commit of that number."""
    return [tests[(number * FEW + step) % len(tests)] for step in range(min(FEW, len(tests)))]


def function_of(item: pytest.Item) -> str:
    """A test without its parameters."""
    return item.nodeid.partition("[")[0]


def is_script(item: pytest.Item) -> bool:
    """Whether a test runs one of the public's scripts."""
    return subjects.subject_of(selection.relative(item.path)) == SUBJECT and bool(name_of(item))


def name_of(item: pytest.Item) -> str:
    """The name of the script that a test runs."""
    call = getattr(item, "callspec", None)
    return str(getattr(call.params.get("script"), "name", "")) if call else ""


def turn() -> tuple[str, ...]:
    """The scripts whose turn it is."""
    from tests.thirdparty.catalog import four

    return tuple(script.name for script in four(commit()))


@cache
def commit() -> int:
    """The commit as a number: all processes of a run, and all runs of a commit, have the same."""
    head = subprocess.run(
        ("git", "rev-parse", "HEAD"), cwd=subjects.ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    return int(head.stdout.strip() or "0", 16)


def is_requested(config: pytest.Config, subject: str) -> bool:
    """Whether the tests of a subject were requested by name."""
    directories = [subject, *(name for name, renamed in subjects.RENAMED.items() if renamed == subject)]
    named = [f"{subjects.TESTS}/{name}" for name in directories]
    by_path = any(name in str(word) for word in config.args for name in named)
    return by_path or subject in config.getoption("subject") or bool(config.getoption("keyword"))


def names_a_file(config: pytest.Config) -> bool:
    """Whether files were requested."""
    return any(".py" in str(word) for word in config.args)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Rotation(config), "distlaunch-rotation")
