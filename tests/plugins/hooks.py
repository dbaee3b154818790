"""Installs startup.py, which every Python of the tests' environment runs as it starts, into that environment."""

from __future__ import annotations

import os
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

from tests.plugins import startup

MODULE = "_tests_startup"
LINE = (
    "import os, sys; "
    f"(os.environ.get({startup.WITHOUT_TORCH!r}) or os.path.exists(os.path.join(sys.prefix, {startup.MARK!r}))) "
    f"and __import__({MODULE!r})\n"
)
"""Read by each Python as it starts: it checks one variable and one file, unless a test run asks for more."""


def install() -> bool:
    """Install it; return whether it is there now."""
    directory = Path(sysconfig.get_path("purelib"))
    if sys.prefix == sys.base_prefix:
        return False  # not a virtual environment
    with suppress(OSError):
        write(directory / f"{MODULE}.py", Path(startup.__file__).read_text(encoding="utf-8"))
        write(directory / f"zz{MODULE}.pth", LINE)
        return True
    return False


def write(path: Path, text: str) -> None:
    """Write a file in one step, unless it is up to date."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
