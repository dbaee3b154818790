"""A directory for tests with several users."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user can reach."""
    directory = Path(tempfile.mkdtemp(prefix="distlaunch-trust-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)
