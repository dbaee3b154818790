"""What the workers run, and what its text says of how it wants to be started."""

from __future__ import annotations

import ast
import errno
import os
import re
import stat
import sys
from types import CodeType
from typing import List, Optional, Union

_READ_AT_IMPORT = re.compile(r"(OMP|MKL|KMP|OPENBLAS|GOTO|GOMP|BLIS|VECLIB|NUMEXPR|TORCH|PYTORCH|LD|MALLOC)_[A-Z0-9_]+")
"""Variables that libraries read while they are imported; a script that sets one first means its own import to see it."""


_PRELOAD = re.compile(rb"^# distlaunch: preload ([\w., ]+?) *$", re.MULTILINE)


def _imports_torch(statement: Union[ast.Import, ast.ImportFrom]) -> bool:
    named = [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
    names = named or [alias.name for alias in statement.names]
    return any(name.split(".")[0] in ("torch", "numpy", "torchvision") for name in names)


def _names_set_by(node: ast.AST) -> List[str]:
    """The constant keys in `os.environ[KEY] = ...`, `os.putenv(KEY, ...)`, `.setdefault(KEY, ...)` and `.update({KEY: ...})`."""
    keys: List[ast.AST] = []
    if isinstance(node, ast.Assign):
        keys = [target.slice for target in node.targets if isinstance(target, ast.Subscript)]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("setdefault", "putenv"):
            keys = list(node.args[:1])
        elif node.func.attr == "update":
            keys = [key for arg in node.args if isinstance(arg, ast.Dict) for key in arg.keys if key is not None]
    return [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]


class Program:
    """What the workers run, prepared once by the fork server."""

    def __init__(self, command: List[str], kind: str, cwd: str) -> None:
        self.kind = kind
        self.args = command[1:]
        self.target = command[0]
        self.path = os.path.join(cwd, command[0]) if kind == "script" else command[0]
        """A script's absolute path, a module's or a program's name."""

        self.folder = os.path.dirname(os.path.realpath(self.path)) if kind == "script" else cwd
        self.code: Optional[CodeType] = None

    def compile(self) -> None:
        """Compile the script, once for all workers; a `SyntaxError` or `OSError` is the user's."""
        if self.kind == "script":
            self.code = compile(self._text(), self.path, "exec", dont_inherit=True)

    def _text(self) -> bytes:
        """The script; a pipe that took its place since it was named is not waited for."""
        with open(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "no file", self.path)
            return file.read()

    def preloads(self) -> List[str]:
        """Modules that the script names in a comment of its own: `# distlaunch: preload torch._dynamo, torchvision`."""
        if self.kind != "script":
            return []
        named = _PRELOAD.findall(self._text())
        return [name.strip().decode() for names in named for name in names.split(b",")]

    def wants_torch(self) -> bool:
        """Whether torch is to be imported before the workers are forked.

        It is where the script, or a module of the user's own that it imports, names torch or imports an installed package.
        A script that finds another way to torch imports it itself, once per worker.
        """
        if self.kind == "program":
            return False
        from . import imports

        search = [self.folder, *sys.path]
        if self.kind == "module":
            return imports.leads_to_torch(self.target, search)
        return imports.lead_to_torch([self.path], search)

    def early_variables(self) -> List[str]:
        """Variables that the script sets before its first import of torch, and that torch or numpy read when imported."""
        if self.kind != "script":
            return []
        tree = ast.parse(self._text())
        found: List[str] = []
        for statement in tree.body:
            if isinstance(statement, (ast.Import, ast.ImportFrom)) and _imports_torch(statement):
                break
            if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                for node in ast.walk(statement):
                    found += [name for name in _names_set_by(node) if _READ_AT_IMPORT.fullmatch(name)]
        return sorted(set(found))

    def argv(self, python: str) -> List[str]:
        """The command that torchrun would execute for a worker."""
        if self.kind == "program":
            return [self.target, *self.args]
        return [python, "-u", *(["-m"] if self.kind == "module" else []), self.target, *self.args]
