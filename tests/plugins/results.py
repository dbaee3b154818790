"""The directory for a run's results: failures, coverage. `.test-results/` in the checkout has those of recent runs."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.plugins.subjects import ROOT

if TYPE_CHECKING:
    import pytest

VARIABLE = "DISTLAUNCH_TEST_RESULTS"
ALL = ROOT / ".test-results"
KEPT = 20
_NAME = re.compile(r"\d{8}-\d{6}-(\d+)")


def new() -> Path:
    """The directory for a run of this process; it is created when something is written to it."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).absolute()
    return ALL / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def of(config: pytest.Config) -> Path:
    """The directory for this run."""
    found: Path | None = getattr(config, "_distlaunch_results", None)
    if found is None:
        found = new()
        config._distlaunch_results = found  # type: ignore[attr-defined]
    return found


def prune(directory: Path = ALL) -> None:
    """Remove old results, except those of runs that are still running."""
    names = sorted(path for path in directory.glob("*") if _NAME.fullmatch(path.name))
    for path in names[: -KEPT or None]:
        match = _NAME.fullmatch(path.name)
        if match and not os.path.exists(f"/proc/{match[1]}"):
            shutil.rmtree(path, ignore_errors=True)


def shown(path: Path) -> str:
    """A path as a user would type it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
