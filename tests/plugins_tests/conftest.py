"""A separate run of pytest on small files, with the project's plugins."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.plugins.subjects import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PLUGINS = ("selection", "scheduling", "host", "load", "measure", "threads", "failures", "summary")


@dataclass(frozen=True)
class Inner:
    """The exit code, the output and the results of an inner run."""

    code: int
    lines: list[str]
    results: Path

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture
def inner(tmp_path: Path) -> Callable[..., Inner]:
    """Write files and run pytest on them."""

    def run(files: dict[str, str], *args: str, env: dict[str, str] | None = None) -> Inner:
        directory = tmp_path / "inner"
        for name, text in {"pytest.ini": "[pytest]\n", **files}.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "DISTLAUNCH", "CI"))
        }
        more = {
            "PYTHONPATH": str(ROOT),
            "DISTLAUNCH_TEST_RESULTS": str(tmp_path / "results"),
            "COLUMNS": "250",
            **(env or {}),
        }
        plugins = [f"-ptests.plugins.{name}" for name in PLUGINS]
        argv = [sys.executable, "-m", "pytest", *plugins, "-o", f"cache_dir={tmp_path}/cache", *args]
        done = subprocess.run(argv, cwd=directory, env={**kept, **more}, capture_output=True, text=True, timeout=120)
        return Inner(done.returncode, (done.stdout + done.stderr).splitlines(), tmp_path / "results")

    return run
