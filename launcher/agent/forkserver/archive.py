"""The agent's own archive, in a process that becomes the agent of another run."""

from __future__ import annotations

import os
import sys
from typing import Any

from . import cpython


def move(path: str) -> None:
    """Have modules that are imported from now on come from this archive, with the same content: the first may go."""
    package = __name__.partition(".forkserver.")[0]
    root: Any = sys.modules[package]
    old = os.path.dirname(root.__path__[0])
    if old == path:
        return
    cpython.forget_archive(old)
    for name, module in list(sys.modules.items()):
        if (name == package or name.startswith(f"{package}.")) and hasattr(module, "__path__"):
            module.__path__ = [path + each[len(old) :] for each in module.__path__]
    for directory in [each for each in sys.path_importer_cache if f"{each}/".startswith(f"{old}/")]:
        finder: Any = sys.path_importer_cache.pop(directory)
        if hasattr(finder, "moved"):
            sys.path_importer_cache[path + directory[len(old) :]] = finder.moved(path)
