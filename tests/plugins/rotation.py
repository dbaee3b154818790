"""A run of everything has all fast tests, and of the others some, which differ by commit; by name all of them run.

Of each file's tests on clusters these are a twelfth, and of its other tests outside the fast tier a tenth. Of every
second function marked `rotating` there is one test, and of the public's scripts there are two.
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

ON_CLUSTERS, SLOW = 12, 10
"""A full run has one in so many of a file's tests."""

MEASURED = 4
"""CI measures coverage at one of so many commits: it takes a quarter of the time."""

FUNCTIONS = 2
"""A full run has a test of one in so many functions with that mark."""


class Rotation:
    """Deselects the tests whose turn it is not."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Remove what is not wanted."""
        unwanted = {*others_scripts(items)} if not is_requested(config, SUBJECT) else set()
        marked = groupby((item for item in items if item.get_closest_marker(MARK)), function_of)
        for at, tests in enumerate([*known] for _, known in marked):
            if not is_requested(config, subjects.subject_of(selection.relative(tests[0].path))):
                unwanted |= {*tests} - {*of_function(tests, at, commit())}
        unwanted |= {*others_of_files(items, config)} if not names_a_file(config) else set()
        if unwanted:
            config.hook.pytest_deselected(items=[item for item in items if item in unwanted])
            items[:] = [item for item in items if item not in unwanted]

    def pytest_report_header(self) -> list[str]:
        marked = "of each file's tests on clusters a twelfth, of its other slow ones a tenth, "
        marked += f"of every second function marked {MARK} one: others at each commit, all if requested by subject"
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


def of_function(tests: Sequence[T], at: int, number: int) -> list[T]:
    """The test of the marked function `at` this place whose turn it is at a commit of that number, if it is one's."""
    turn, rest = divmod(number + at, FUNCTIONS)
    return [] if rest else [tests[turn % len(tests)]]


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
    from tests.thirdparty.catalog import two

    return tuple(script.name for script in two(commit()))


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
