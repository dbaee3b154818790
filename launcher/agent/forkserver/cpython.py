"""The private names of CPython that forked workers need, only in this file. If one is missing, workers are spawned."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Dict, List, Tuple

_CALLS: Dict[str, Tuple[str, ...]] = {
    "atexit": ("_clear", "_ncallbacks"),
    "runpy": ("_run_module_as_main",),
    "sys": ("_current_frames",),
}
_ARGUMENTS = ("mod_name", "alter_argv")


def missing() -> List[str]:
    """The names that this Python lacks or has changed."""
    lacks = [
        f"{module}.{name}" for module, names in _CALLS.items() for name in names if not callable(_private(module, name))
    ]
    code = getattr(run_module_as_main(), "__code__", None)
    if code is not None and code.co_varnames[: code.co_argcount] != _ARGUMENTS:
        lacks.append(f"runpy._run_module_as_main({', '.join(_ARGUMENTS)})")
    if "zipimport" in sys.modules and not isinstance(_private("zipimport", "_zip_directory_cache"), dict):
        lacks.append("zipimport._zip_directory_cache")
    return lacks


def run_module_as_main() -> Any:
    """The function that `python -m` itself calls; not wrapped, as a traceback would show the wrapper."""
    return _private("runpy", "_run_module_as_main")


def exit_hooks() -> int:
    """How many are registered; -1 if this Python does not report it."""
    count = _private("atexit", "_ncallbacks")
    return int(count()) if callable(count) else -1


def clear_exit_hooks() -> None:
    """Release them and what they hold."""
    _private("atexit", "_clear")()


def finalizers_of(module: str) -> List[Any]:
    """The living `weakref.finalize` objects that call a function of this module; none if they cannot be listed."""
    known = getattr(_private("weakref", "finalize"), "_registry", None) if "weakref" in sys.modules else None
    found = list(known.items()) if isinstance(known, dict) else []
    return [each for each, about in found if getattr(getattr(about, "func", None), "__module__", "") == module]


def python_threads() -> int:
    """How many threads run Python code."""
    return len(_private("sys", "_current_frames")())


def forget_archive(path: str) -> List[Any]:
    """Remove an archive, and its further parts, from the cache of zipimport; returns what that held."""
    known = _private("zipimport", "_zip_directory_cache") if "zipimport" in sys.modules else {}
    return [known.pop(name) for name in list(known) if f"{name}.".startswith(f"{path}.")]


def _private(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name, None)
