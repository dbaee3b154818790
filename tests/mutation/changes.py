"""Small wrong changes of a Python file, found in its syntax tree: each replaces one piece of the text."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

SWAPPED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "*"),
}
DROPPED = (ast.Expr, ast.Assign, ast.AugAssign, ast.Raise, ast.Delete, ast.Continue, ast.Break)
LIMIT = re.compile(r"(_s|_S|timeout|limit|patience|every|backlog|_bytes)$", re.IGNORECASE)
"""Names whose numbers are limits of time or size: with one more it is the same program."""


class Change(NamedTuple):
    """One wrong change."""

    path: str
    line: int
    last_line: int
    what: str
    start: int
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        """The file with this change."""
        return source[: self.start] + self.text.encode() + source[self.end :]


class Finder:
    """Finds the changes of one file."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.tree = ast.parse(source)
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def offset(self, line: int, column: int) -> int:
        """The offset of a place in the file; columns are bytes, as in the syntax tree."""
        return self.starts[line - 1] + column

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Where a node begins and ends."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.expr | ast.stmt) -> str:
        """A node as it is written."""
        start, end = self.span(node)
        return self.source[start:end].decode()

    def change(self, node: ast.expr | ast.stmt, what: str, text: str) -> Change:
        """A change of a whole node."""
        return Change(self.path, node.lineno, node.end_lineno or node.lineno, what, *self.span(node), text)

    def between(self, left: ast.expr, right: ast.expr, operator: ast.AST, what: str) -> Iterator[Change]:
        """A change of the operator between two nodes."""
        old, new = SWAPPED.get(type(operator), ("", ""))
        start, end = self.span(left)[1], self.span(right)[0]
        pattern = r"\s+".join(map(re.escape, old.split()))
        found = re.search(rf"(?<![\w<>=!*/]){pattern}(?![\w<>=!*/])", self.source[start:end].decode()) if old else None
        if found:
            line, last = left.end_lineno or left.lineno, right.lineno
            at, to = start + found.start(), start + found.end()
            yield Change(self.path, line, last, f"{what}: {old} -> {new}", at, to, new)

    def find(self) -> list[Change]:
        """All changes."""
        found: list[Change] = []
        self.walk(self.tree, found)
        return found

    def walk(self, node: ast.AST, found: list[Change]) -> None:
        """Find changes below a node, in the order of the file, but not in annotations or for type checkers."""
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_comment", "decorator_list", "bases"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not skipped(child):
                    found += self.changes(child, node)
                    self.walk(child, found)

    def changes(self, node: ast.AST, parent: ast.AST) -> Iterator[Change]:
        """The changes at one node."""
        if isinstance(node, (ast.If, ast.While, ast.IfExp)) and not isinstance(node.test, ast.Constant):
            yield self.change(node.test, "condition negated", f"(not ({self.text(node.test)}))")
        if isinstance(node, ast.comprehension):
            yield from (self.change(test, "condition negated", f"(not ({self.text(test)}))") for test in node.ifs)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from self.between(node.left, node.comparators[0], node.ops[0], "comparison")
        if isinstance(node, ast.BoolOp):
            yield from (
                self.between(node.values[0], node.values[1], node.op, "condition") if len(node.values) == 2 else ()
            )
        if isinstance(node, ast.BinOp) and not is_text(node.left) and not is_text(node.right):
            yield from self.between(node.left, node.right, node.op, "arithmetic")
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield self.change(node, "`not` dropped", self.text(node.operand))
        if isinstance(node, DROPPED) and not isinstance(parent, (ast.Module, ast.ClassDef)) and not is_docstring(node):
            yield self.change(node, "statement dropped", "pass")
        if isinstance(node, ast.Return) and node.value is not None and not is_none(node.value):
            yield self.change(node, "nothing returned", "return None")
        if isinstance(node, ast.Constant) and not is_limit(node, parent):
            yield from self.constant(node)

    def constant(self, node: ast.Constant) -> Iterator[Change]:
        """Another truth value, or a number plus one."""
        if isinstance(node.value, bool):
            yield self.change(node, f"{node.value} -> {not node.value}", str(not node.value))
        elif isinstance(node.value, int):
            yield self.change(node, f"{self.text(node)} -> {node.value + 1}", str(node.value + 1))


def skipped(node: ast.AST) -> bool:
    """Whether no test could notice a change: imports, assertions for the type checker, texts."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Assert, ast.JoinedStr, ast.Global, ast.Nonlocal)):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("TypeVar", "cast"):
        return True
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def is_docstring(node: ast.AST) -> bool:
    """Whether a statement is only a text, or dots."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_none(node: ast.AST) -> bool:
    """Whether it is None already."""
    return isinstance(node, ast.Constant) and node.value is None


def is_text(node: ast.AST) -> bool:
    """Whether an operand is a text or a list, for which only `+` makes sense."""
    return isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.ListComp)) or (
        isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    )


def is_limit(node: ast.Constant, parent: ast.AST) -> bool:
    """Whether a number is a limit of time or size."""
    if isinstance(node.value, bool) or not isinstance(node.value, int):
        return False
    names = []
    if isinstance(parent, ast.keyword):
        names.append(parent.arg or "")
    if isinstance(parent, ast.Assign):
        names += [target.id for target in parent.targets if isinstance(target, ast.Name)]
    if isinstance(parent, ast.AnnAssign) and isinstance(parent.target, ast.Name):
        names.append(parent.target.id)
    if isinstance(parent, ast.arguments):
        return True
    return any(LIMIT.search(name) for name in names) or node.value >= 1000


def changes(path: str, source: bytes) -> list[Change]:
    """All changes of one file; a few may make it invalid Python, see `compiles`."""
    return Finder(path, source).find()


def compiles(source: bytes) -> bool:
    """Whether this is valid Python."""
    try:
        compile(source, "x", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True
