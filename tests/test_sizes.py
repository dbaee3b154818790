"""How large files, functions and classes may be. Larger ones are in a table with their sizes, which can only shrink."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PRODUCT = ("launcher", "distlaunch", "train", "testbed", "playbooks")
LINES, BODY, ATTRIBUTES = 300, 40, 12

LARGER: dict[str, int] = {}
"""Files by their paths, functions and classes as `path::name`."""


class Size(NamedTuple):
    """The size of a file, function or class, and its limit."""

    name: str
    line: int
    measure: int
    limit: int
    unit: str

    def __str__(self) -> str:
        path, _, name = self.name.partition("::")
        return f"{path}:{self.line}: {name or 'the file'} has {self.measure} {self.unit}, and may have {self.limit}"


def sizes(tree: str, root: Path = ROOT, *, files_only: bool = False) -> Iterator[Size]:
    """The sizes of all files in a tree and, unless only files count, of functions and classes."""
    for path in sorted(root.glob(f"{tree}/**/*.py")):
        name, text = str(path.relative_to(root)), path.read_text(encoding="utf-8")
        yield Size(name, 1, len(text.splitlines()), LINES, "lines")
        for node in ast.walk(ast.parse(text)) if not files_only else ():
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield Size(f"{name}::{node.name}", node.lineno, body_lines(node), BODY, "lines in its body")
            elif isinstance(node, ast.ClassDef):
                yield Size(f"{name}::{node.name}", node.lineno, len(attributes(node)), ATTRIBUTES, "attributes")


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From its first statement to its end; its parameters and its docstring are not counted."""
    statements = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return (function.end_lineno or 0) - statements[0].lineno + 1 if statements else 0


def attributes(class_: ast.ClassDef) -> set[str]:
    """The attributes of `self` that its methods set; the fields of a dataclass are not counted."""
    record = any("dataclass" in ast.unparse(decorator) for decorator in class_.decorator_list)
    fields = {
        each.target.id for each in class_.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    found = {
        node.attr
        for node in ast.walk(class_)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }
    return found - fields if record else found


def measured() -> list[Size]:
    """All sizes of the project; of tests and benchmarks only those of files."""
    found = [size for tree in PRODUCT for size in sizes(tree)]
    assert {size.name.partition("/")[0] for size in found} == {*PRODUCT}
    return found + [size for tree in ("tests", "benchmarks") for size in sizes(tree, files_only=True)]


def test_nothing_is_larger_than_its_limit() -> None:
    wrong = [
        str(size._replace(limit=limit))
        for size in measured()
        if size.measure > (limit := LARGER.get(size.name, size.limit))
    ]
    assert not wrong, "split by subject:\n" + "\n".join(wrong)


def test_the_table_has_only_what_is_still_larger() -> None:
    large = {size.name for size in measured() if size.measure > size.limit}
    assert {*LARGER} - large == set()


def test_what_is_too_large_is_found(tmp_path: Path) -> None:
    path = tmp_path / "launcher" / "large.py"
    path.parent.mkdir()
    assigned = "".join(f"        self.a{number} = self.b.c = 0\n" for number in range(13))
    calls = "    call()\n" * 40
    path.write_text(
        f"class Large:\n    def set(self):\n{assigned}"
        f"@dataclass\nclass Record:\n    a0: int\n    def set(self):\n{assigned}"
        f'def long(\n    a, b\n):\n    """Says\n    more."""\n{calls}    call()\n'
        f"async def short():\n{calls}" + "#\n" * 200
    )

    found = {
        size.name.rpartition("::")[2]: str(size) for size in sizes("launcher", tmp_path) if size.measure > size.limit
    }

    assert found == {
        "launcher/large.py": "launcher/large.py:1: the file has 319 lines, and may have 300",
        "Large": "launcher/large.py:1: Large has 13 attributes, and may have 12",
        "long": "launcher/large.py:33: long has 41 lines in its body, and may have 40",
    }
    assert [size.name for size in sizes("launcher", tmp_path, files_only=True)] == ["launcher/large.py"]
