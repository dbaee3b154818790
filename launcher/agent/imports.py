"""Whether a script will import torch, by its text and that of the user's own modules that it imports; nothing is executed."""

from __future__ import annotations

import ast
import os
import sys
from importlib.machinery import PathFinder
from typing import Iterator, List, Optional, Set

_STDLIB = os.path.dirname(os.__file__)
_SITE = ("site-packages", "dist-packages")

_WITHOUT_TORCH = frozenset((
    "numpy", "scipy", "pandas", "matplotlib", "PIL", "yaml", "tqdm", "rich", "requests", "psutil", "click", "typer", "sklearn",
    "h5py", "zmq", "msgpack", "cloudpickle", "mpi4py", "jax", "jaxlib", "flax", "optax", "tensorflow", "horovod",
))  # fmt: skip
"""Installed packages that import no torch by themselves; all others are taken to do so."""

_FILES = 500
"""More files than that are not looked into: they are taken to import torch."""


def leads_to_torch(module: str, search: List[str]) -> bool:
    """The same of a module that is run by its name."""
    own = _files(module, search)
    if own is None:
        return not _is_harmless(module.partition(".")[0], search)
    mains = [os.path.join(os.path.dirname(path), "__main__.py") for path in own if path.endswith("__init__.py")]
    return lead_to_torch([*own, *mains], search)


def lead_to_torch(files: List[str], search: List[str]) -> bool:
    """Whether one of the files, or a module of the user's own that they import, names torch or imports an installed package."""
    todo = list(files)
    seen: Set[str] = set()
    while todo:
        path = todo.pop()
        if path in seen or not os.path.isfile(path):
            continue
        seen.add(path)
        with open(path, "rb") as file:
            text = file.read()
        if b"torch" in text or len(seen) > _FILES:
            return True
        for name in _imported(text, _package_of(path)):
            own = _files(name, search)
            if own is None and not _is_harmless(name.partition(".")[0], search):
                return True
            todo += own or []
    return False


def _imported(text: bytes, package: List[str]) -> Iterator[str]:
    """The full names of what a module of that package imports, anywhere in it; also of what may be a name or a module."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # whoever imports it is told
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = [*above, *filter(None, [node.module])]
            yield from (".".join([*base, alias.name]) for alias in node.names)


def _package_of(path: str) -> List[str]:
    """The package that a module's file is in."""
    parts: List[str] = []
    folder = os.path.dirname(path)
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        parts.insert(0, os.path.basename(folder))
        folder = os.path.dirname(folder)
    return parts


def _files(name: str, search: List[str]) -> Optional[List[str]]:
    """The files that are executed when a module of the user's own is imported; None: it is not, or there is no such module."""
    top, *rest = name.split(".")
    spec = None if top in sys.builtin_module_names else PathFinder.find_spec(top, search)
    if spec is None or not _is_own(spec.origin or next(iter(spec.submodule_search_locations or []), "")):
        return None
    found = [spec.origin] if spec.origin and spec.origin.endswith(".py") else []
    for folder in spec.submodule_search_locations or []:
        for part in rest:
            folder, module = os.path.join(folder, part), os.path.join(folder, part + ".py")  # noqa: PLW2901 - goes down
            found.append(module if os.path.isfile(module) else os.path.join(folder, "__init__.py"))
    return found


def _is_own(origin: str) -> bool:
    return bool(origin) and not origin.startswith(_STDLIB) and not any(part in origin for part in _SITE)


def _is_harmless(top: str, search: List[str]) -> bool:
    """Whether a top-level module that is not the user's own imports no torch."""
    if top in _WITHOUT_TORCH or top in sys.builtin_module_names:
        return True
    spec = PathFinder.find_spec(top, search)
    if spec is None:  # there is none, or it is frozen into the interpreter
        return True
    return not any(part in (spec.origin or "") for part in _SITE)
