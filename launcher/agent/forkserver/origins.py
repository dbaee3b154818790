"""Where modules come from: whose they are, and which files are executed when they are imported. Nothing is imported."""

from __future__ import annotations

import os
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from typing import Collection, List, Optional

_STDLIB = os.path.dirname(os.__file__)
_SITE = ("site-packages", "dist-packages")

_WITHOUT_TORCH = frozenset((
    "numpy", "scipy", "pandas", "matplotlib", "PIL", "yaml", "tqdm", "rich", "requests", "psutil", "click", "typer",
    "sklearn", "h5py", "zmq", "msgpack", "cloudpickle", "mpi4py", "jax", "jaxlib", "flax", "optax", "tensorflow",
    "horovod",
))  # fmt: skip
"""Installed packages that do not import torch by themselves; all others are assumed to."""

_FIRST = frozenset((
    "__main__", "__mp_main__", "abc", "codecs", "encodings", "genericpath", "io", "os", "posixpath", "site", "stat",
    "sitecustomize", "usercustomize",
))  # fmt: skip
"""Modules that an interpreter imports before any script; in some versions they are frozen."""


def package_of(path: str) -> List[str]:
    """The package that a module's file is in."""
    parts: List[str] = []
    directory = os.path.dirname(path)
    while os.path.isfile(os.path.join(directory, "__init__.py")):
        parts.insert(0, os.path.basename(directory))
        directory = os.path.dirname(directory)
    return parts


def own_files(name: str, search: List[str]) -> Optional[List[str]]:
    """The files that are executed when a user's own module is imported; None: it is not the user's, or is missing."""
    top, *rest = name.split(".")
    spec = None if top in sys.builtin_module_names else PathFinder.find_spec(top, search)
    if spec is None or not _is_own(spec.origin or next(iter(spec.submodule_search_locations or []), "")):
        return None
    found = [spec.origin] if spec.origin and spec.origin.endswith(".py") else []
    for directory in spec.submodule_search_locations or []:
        for part in rest:
            directory, module = os.path.join(directory, part), os.path.join(directory, part + ".py")  # noqa: PLW2901 - goes down
            found.append(module if os.path.isfile(module) else os.path.join(directory, "__init__.py"))
    return found


def named_like_imported(directory: str, *, executed: bool) -> List[str]:
    """Files in the first directory of the import path that have the name of a module imported from elsewhere.

    `executed`: also those that were imported themselves. Modules that an interpreter imports before any script are
    left out.
    """
    try:
        names = {entry.partition(".")[0] for entry in os.listdir(directory)}
    except OSError:
        return []
    found = []
    for name in sorted(names & set(sys.modules) - _FIRST):
        spec = PathFinder.find_spec(name, [directory])
        if spec is None or not spec.origin or BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name):
            continue
        here = getattr(getattr(sys.modules[name], "__spec__", None), "origin", None)
        if here != spec.origin or executed:
            found.append(spec.origin)
    return found


def _is_own(origin: str) -> bool:
    return bool(origin) and not origin.startswith(_STDLIB) and not any(part in origin for part in _SITE)


def is_harmless(top: str, search: List[str], but: Collection[str] = ()) -> bool:
    """Whether a top-level module that is not the user's own does not import torch; those in `but` may."""
    if (top in _WITHOUT_TORCH and top not in but) or top in sys.builtin_module_names:
        return True
    spec = PathFinder.find_spec(top, search)
    if spec is None:  # it is missing, or frozen into the interpreter
        return True
    return not any(part in (spec.origin or "") for part in _SITE)
