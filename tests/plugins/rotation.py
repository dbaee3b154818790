"""A run of everything has a few of many tests, others at each commit; all of them run if requested by name.

These are the public's scripts, of which a run has four; tests marked `rotating`, of which it has two per function; and
those on clusters, of which it has every second one in a file.
"""

from __future__ import annotations

import subprocess
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from tests.plugins import subjects

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

MATRIX = "frameworks"
"""The subject whose tests on clusters have a mark of their own where there are many."""

FEW = 2
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
            if not is_requested(config, subjects.subject_of(relative(known[0]))):
                unwanted |= {*known} - {*few(known, commit())}
        for _, tests in groupby(filter(is_halved, items), lambda item: item.path):
            known = [*tests]
            if not is_requested(config, subjects.subject_of(relative(known[0]))) and not names_a_file(config):
                unwanted |= {*known[commit() % 2 :: 2]}
        if unwanted:
            config.hook.pytest_deselected(items=[item for item in items if item in unwanted])
            items[:] = [item for item in items if item not in unwanted]

    def pytest_report_header(self) -> list[str]:
        marked = f"of tests marked {MARK} {FEW} per function, and of those on clusters a half of each file"
        marked += ", others at each commit, if not requested by subject"
        if is_requested(self.config, SUBJECT):
            return [marked]
        names = ", ".join(turn())
        return [f"the public's scripts of this commit, of all of them: {names} (scripts/test {SUBJECT}: all)", marked]


def others_scripts(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """The tests of scripts whose turn it is not."""
    tests = [item for item in items if is_script(item)]
    names = turn() if tests else ()
    yield from (item for item in tests if item.path.name != LOCAL or name_of(item) not in names)


def few(tests: Sequence[T], number: int) -> list[T]:
    """Those whose turn it is at a commit of that number."""
    return [tests[(number * FEW + step) % len(tests)] for step in range(min(FEW, len(tests)))]


def function_of(item: pytest.Item) -> str:
    """A test without its parameters."""
    return item.nodeid.partition("[")[0]


def is_halved(item: pytest.Item) -> bool:
    """Whether a full run has a half of the tests of this kind in a file."""
    on_a_cluster = any(item.get_closest_marker(mark) for mark in CLUSTERS)
    return on_a_cluster and not item.get_closest_marker(MARK) and subjects.subject_of(relative(item)) != MATRIX


def is_script(item: pytest.Item) -> bool:
    """Whether a test runs one of the public's scripts."""
    return subjects.subject_of(relative(item)) == SUBJECT and bool(name_of(item))


def name_of(item: pytest.Item) -> str:
    """The name of the script that a test runs."""
    call = getattr(item, "callspec", None)
    return str(getattr(call.params.get("script"), "name", "")) if call else ""


def relative(item: pytest.Item) -> str:
    """A test's file, relative to the top of the checkout."""
    return str(item.path.relative_to(subjects.ROOT)) if item.path.is_relative_to(subjects.ROOT) else str(item.path)


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
    named = f"{subjects.TESTS}/{subject}"
    return subject in config.getoption("subject") or any(named in str(word) for word in config.args)


def names_a_file(config: pytest.Config) -> bool:
    """Whether files were requested."""
    return any(".py" in str(word) for word in config.args)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Rotation(config), "distlaunch-rotation")
