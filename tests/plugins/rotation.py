"""Of the public's scripts, four in a run of everything, others at each commit; all of them where they are asked for by name."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests.plugins import subjects

if TYPE_CHECKING:
    import pytest

SUBJECT = "thirdparty"
LOCAL = "test_local.py"
"""The others need a cluster of their own."""


class Rotation:
    """Deselects the scripts whose turn it is not."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Take away what is not wanted."""
        if not any(is_script(item) for item in items):
            return
        self.names = turn()
        kept = [item for item in items if not is_script(item) or (item.path.name == LOCAL and name_of(item) in self.names)]
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
    """A test's file as seen from the top of the checkout."""
    return str(item.path.relative_to(subjects.ROOT)) if item.path.is_relative_to(subjects.ROOT) else str(item.path)


def turn() -> tuple[str, ...]:
    """Whose turn it is: by the commit, so that each process of a run, and each run of a commit, has the same."""
    from tests.thirdparty.catalog import four

    told = subprocess.run(
        ("git", "rev-parse", "HEAD"), cwd=subjects.ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    return tuple(script.name for script in four(int(told.stdout.strip() or "0", 16)))


def asked_for(config: pytest.Config) -> bool:
    """Whether somebody has named these tests."""
    named = f"{subjects.TESTS}/{SUBJECT}"
    return SUBJECT in config.getoption("subject") or any(named in str(word) for word in config.args)


def pytest_configure(config: pytest.Config) -> None:
    if not asked_for(config):
        config.pluginmanager.register(Rotation(), "distlaunch-rotation")
