"""A run of everything has four of the public's scripts, others at each commit; all of them run if requested by name."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests.plugins import subjects

if TYPE_CHECKING:
    import pytest

SUBJECT = "thirdparty"
LOCAL = "test_local.py"
"""The other files need clusters of their own."""


class Rotation:
    """Deselects the scripts whose turn it is not."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Remove what is not wanted."""
        if not any(is_script(item) for item in items):
            return
        self.names = turn()
        kept = [
            item for item in items if not is_script(item) or (item.path.name == LOCAL and name_of(item) in self.names)
        ]
        if len(kept) < len(items):
            wanted = set(kept)
            config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
            items[:] = kept

    def pytest_report_header(self) -> str:
        return f"the public's scripts of this commit, of all of them: {', '.join(turn())} (scripts/test {SUBJECT}: all)"


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
    """The scripts whose turn it is: by commit, so all processes of a run, and all runs of a commit, have the same."""
    from tests.thirdparty.catalog import four

    head = subprocess.run(
        ("git", "rev-parse", "HEAD"), cwd=subjects.ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    return tuple(script.name for script in four(int(head.stdout.strip() or "0", 16)))


def is_requested(config: pytest.Config) -> bool:
    """Whether these tests were requested by name."""
    named = f"{subjects.TESTS}/{SUBJECT}"
    return SUBJECT in config.getoption("subject") or any(named in str(word) for word in config.args)


def pytest_configure(config: pytest.Config) -> None:
    if not is_requested(config):
        config.pluginmanager.register(Rotation(), "distlaunch-rotation")
