"""Whether a script will import torch, judged by its text and that of the user's own modules; nothing is executed.

It will if one of them has such an import anywhere. It may if they do without it (`except ImportError`), only have the
name in a string, or import an installed package, which is not examined.
"""

from __future__ import annotations

import ast
import os
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from typing import Collection, Iterator, List, Optional, Set, Tuple, Union

from .guess import MAYBE, NO, SURELY

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

_CATCH = frozenset(("ImportError", "ModuleNotFoundError", "Exception", "BaseException"))

_FILES = 500
"""Maximum number of files that are examined; if there are more, they may import torch."""


def leads_to_torch(module: str, search: List[str]) -> int:
    """Like `lead_to_torch`, for a module that is run by its name."""
    own = files_of_main(module, search)
    return _through(module, search) if own is None else lead_to_torch(own, search)


def files_of_main(module: str, search: List[str]) -> Optional[List[str]]:
    """The files of a user's own module that is run by its name, in the order in which they are executed."""
    own = own_files(module, search)
    if own is not None and own[-1:] and own[-1].endswith("__init__.py"):
        own.append(os.path.join(os.path.dirname(own[-1]), "__main__.py"))
    return own


def lead_to_torch(files: List[str], search: List[str]) -> int:
    """Whether the files, or the user's own modules that they import, import torch: NO, MAYBE or SURELY."""
    todo, found, most = list(files), NO, SURELY
    tried: List[str] = []
    seen: Set[str] = set()
    while (todo or tried) and found < most:
        if not todo:  # the script does without what is left
            todo, tried, most = tried, [], MAYBE
        path = todo.pop()
        if path in seen or not os.path.isfile(path):
            continue
        seen.add(path)
        if len(seen) > _FILES:
            return MAYBE
        with open(path, "rb") as file:
            text = file.read()
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):  # its execution will report this, or another interpreter accepts it
            found = max(found, MAYBE if b"torch" in text else NO)
            continue
        if b"torch" in text and found == NO:
            found = MAYBE if any(map(_is_its_name, ast.walk(tree))) else NO
        for name, optional in _imported(tree, package_of(path)):
            own = None if name.partition(".")[0] == "torch" else own_files(name, search)
            if own is None:
                found = max(found, min(_through(name, search), MAYBE if optional else most))
            else:
                (tried if optional else todo).extend(own)
    return min(found, most)


def _imported(tree: ast.AST, package: List[str]) -> Iterator[Tuple[str, bool]]:
    """The full names of all that a module of this package imports, and whether it does without.

    Some may be names in a module.
    """
    every = list(ast.walk(tree))
    tries = (node for node in every if isinstance(node, (ast.Try, ast.With)) and _does_without(node))
    optional = {id(step) for node in tries for step in _steps(node)}
    for node in every:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((name, id(node) in optional) for name in names_of(node, package))


def _does_without(node: Union[ast.Try, ast.With]) -> bool:
    """Whether a statement catches the errors of imports: `except ImportError`, `with suppress(ImportError)`."""
    caught: List[Optional[ast.expr]] = []
    if isinstance(node, ast.Try):
        caught = [handler.type for handler in node.handlers]
    elif isinstance(node, ast.With):
        caught = [item.context_expr for item in node.items]
    names = [each for error in caught if error for each in ast.walk(error)]
    return None in caught or any(isinstance(each, ast.Name) and each.id in _CATCH for each in names)


def _steps(node: ast.AST) -> Iterator[ast.AST]:
    """All that is in the body of such a statement."""
    for step in getattr(node, "body", ()):
        yield from ast.walk(step)


def _is_its_name(node: ast.AST) -> bool:
    """Whether a node is torch's name in a string, as `importlib.import_module` takes it."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.partition(".")[0] == "torch"


def _through(name: str, search: List[str]) -> int:
    """Like `lead_to_torch`, for the import of a module that is not the user's own."""
    top = name.partition(".")[0]
    return SURELY if top == "torch" else NO if is_harmless(top, search) else MAYBE


def names_of(statement: Union[ast.Import, ast.ImportFrom], package: List[str]) -> List[str]:
    """The full names of what a statement in a module of this package imports; some may be names in a module."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    above = package[: len(package) - statement.level + 1] if statement.level else []
    base = [*above, *filter(None, [statement.module])]
    return [".".join([*base, alias.name]) for alias in statement.names]


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
