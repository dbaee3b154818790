"""Whether a script will import torch, judged by its text and that of the user's own modules; nothing is executed.

It will if one of them has such an import anywhere. It may if they do without it (`except ImportError`), only have the
name in a string, or import an installed package, which is not examined.
"""

from __future__ import annotations

import ast
import os
from typing import Iterator, List, Optional, Set, Tuple, Union

from .guess import MAYBE, NO, SURELY
from .origins import is_harmless, own_files, package_of

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
