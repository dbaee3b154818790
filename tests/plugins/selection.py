"""Which tests run: `--subject`, `--tier`, `--changed`. All of them by default."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed.testbed import Testbed
from tests.plugins import affected, hooks, startup, subjects

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any, NoReturn

FIXTURES = "testbed.fixtures"
SLOW = ("torch", "slow")
"""Marks of tests that take seconds on their own."""

CLUSTERS = ("slurm", "ssh", "k8s", "testbed")
"""Marks of tests that bring hosts up."""

NOT_FAST = ("train", "benchmarks", "plugins_tests", "chaos")
"""Directories that are not even collected for the fast tier: their tests import torch or start what does (such tests
are marked elsewhere), or they are about the way tests run, and start pytest."""

WORKER_KEY = "distlaunch_files"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("selection of tests")
    group.addoption(
        "--subject", action="append", default=[], metavar="WORD", help="tests about this; may be given several times"
    )
    group.addoption(
        "--tier", choices=subjects.TIERS, help="fast: leave out what takes seconds, above all clusters and torch"
    )
    group.addoption("--changed", action="store_true", help="tests that the changed files can affect")
    group.addoption(
        "--changed-since",
        metavar="REVISION",
        help="changed since this one (default: where this branch left the main one)",
    )


class Selection:
    """Deselects what was not requested."""

    def __init__(self, config: pytest.Config) -> None:
        self.fast = config.getoption("tier") == "fast"
        self.subjects: list[str] = config.getoption("subject")
        unknown = set(self.subjects) - set(subjects.known())
        if unknown:
            raise pytest.UsageError(
                f"unknown subject {', '.join(sorted(unknown))}; known: {' '.join(subjects.known())}"
            )
        self.files: frozenset[str] | None = None
        self.summary = ""
        if config.getoption("changed") or config.getoption("changed_since"):
            given = getattr(config, "workerinput", {}).get(WORKER_KEY)  # the same for all processes of a run
            if given is None:
                changed = affected.changed_files(config.getoption("changed_since"))
                found = affected.affected(changed)
                self.summary = found.summary
                given = json.dumps(sorted(found.files))
            self.given = given
            self.files = frozenset(json.loads(given))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """All processes use the controller's answer."""
        if self.files is not None:
            node.workerinput[WORKER_KEY] = self.given

    def pytest_report_header(self) -> list[str]:
        return [self.summary] if self.summary else []

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        """Do not even import files without tests that are wanted."""
        if collection_path.suffix != ".py":
            return None
        return None if self.may_have(relative(collection_path)) else True

    def may_have(self, path: str) -> bool:
        """Whether a test of this file may be wanted."""
        if self.subjects and subjects.subject_of(path) not in self.subjects:
            return False
        if self.fast and directory_of(path) in NOT_FAST:
            return False
        return self.files is None or path in self.files

    def wants(self, item: pytest.Item) -> bool:
        """Whether to run this test."""
        path = relative(item.path)
        return self.may_have(path) and (is_fast(item) or not self.fast)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Remove what is not wanted."""
        kept = [item for item in items if self.wants(item)]
        if len(kept) < len(items):
            wanted = set(kept)
            config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
            items[:] = kept

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Succeed if no file that any test depends on has changed."""
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.files == frozenset():
            session.exitstatus = pytest.ExitCode.OK


class WithoutTorch:
    """In the fast tier torch is not imported and no cluster is started: a test that does either fails."""

    def __init__(self) -> None:
        name = f"distlaunch-tests-torch-{os.getpid()}"
        self.log = Path(tempfile.gettempdir()) / name
        os.environ[startup.WITHOUT_TORCH] = str(self.log)
        finder: Any = startup.NoTorch()
        sys.meta_path.insert(0, finder)
        self.finder = finder
        self.up = Testbed.up
        Testbed.up = no_cluster  # type: ignore[method-assign]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail for an import that a process has not reported."""
        result = yield
        if self.log.exists():
            imports = self.log.read_text(encoding="utf-8", errors="replace")
            self.log.unlink()
            pytest.fail(
                f"torch was imported in the fast tier: mark the test `torch` (docs/testing.md)\n{imports}",
                pytrace=False,
            )
        return result

    def pytest_unconfigure(self) -> None:
        """Restore what was replaced."""
        Testbed.up = self.up  # type: ignore[method-assign]
        sys.meta_path.remove(self.finder)
        os.environ.pop(startup.WITHOUT_TORCH, None)


def no_cluster(*_args: object, **_options: object) -> NoReturn:
    """In place of bringing a testbed up."""
    pytest.fail("a cluster is brought up in the fast tier: mark the test `testbed` (docs/testing.md)", pytrace=False)


def pytest_configure(config: pytest.Config) -> None:
    selection = Selection(config)
    config.pluginmanager.register(selection, "distlaunch-selection")
    if selection.fast:
        if not hasattr(config, "workerinput"):
            hooks.install()
        config.pluginmanager.register(WithoutTorch(), "distlaunch-without-torch")


def relative(path: Path) -> str:
    """A file, relative to the top of the checkout."""
    return str(path.relative_to(subjects.ROOT)) if path.is_relative_to(subjects.ROOT) else str(path)


def directory_of(path: str) -> str:
    """The directory of tests that a file is in."""
    return [*path.split("/"), "", ""][1]


def is_fast(item: pytest.Item) -> bool:
    """Whether a test is in the fast tier."""
    mine = directory_of(relative(item.path)) not in NOT_FAST
    return mine and not any(map(item.get_closest_marker, SLOW)) and not brings_hosts_up(item)


def brings_hosts_up(item: pytest.Item) -> bool:
    """Whether a test or one of its fixtures starts a testbed: by its marks, or by the names in its code."""
    if any(map(item.get_closest_marker, CLUSTERS)):
        return True
    info = getattr(item, "_fixtureinfo", None)
    functions = [known[-1].func for known in info.name2fixturedefs.values()] if info else []
    return any(map(names_testbed, [getattr(item, "function", None), *functions]))


def names_testbed(function: object) -> bool:
    """Whether a function calls `fixtures.make(...)` or `Testbed(...)`, or is a session fixture of the testbed."""
    code = getattr(function, "__code__", None)
    called = set(code.co_names) if code else set()
    return (
        {"fixtures", "make"} <= called
        or "Testbed" in called
        or (getattr(function, "__module__", "") == FIXTURES and "make" in called)
    )
