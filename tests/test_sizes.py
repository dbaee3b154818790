"""How large a file, a function and a class may be. What is larger stands in a table with its size, which can only shrink."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PRODUCT = ("launcher", "distlaunch", "train", "testbed", "playbooks")
LINES, BODY, ATTRIBUTES = 300, 40, 12

LARGER = {
    "launcher/agent/group/nodes.py::Nodes": 17,
    "tests/agent/test_early.py": 440,
    "tests/agent/test_life.py": 350,
    "tests/agent/test_store.py": 477,
    "tests/agent/test_words.py": 391,
    "tests/ansible/test_life.py": 458,
    "tests/ansible/test_run.py": 305,
    "tests/cli/test_follow.py": 418,
    "tests/cli/test_follower.py": 467,
    "tests/cli/test_requests.py": 322,
    "tests/config/test_checks.py": 446,
    "tests/config/test_trust.py": 490,
    "tests/forked_server.py": 380,
    "tests/k8s/test_admission.py": 368,
    "tests/k8s/test_control_plane.py": 376,
    "tests/k8s/test_logs.py": 343,
    "tests/k8s/test_manifests.py": 378,
    "tests/k8s/test_pods.py": 422,
    "tests/mutation/__main__.py": 365,
    "tests/scripts/able_torch.py": 315,
    "tests/slurm/conftest.py": 318,
    "tests/slurm/test_slurm.py": 320,
    "tests/slurm/test_words.py": 322,
    "tests/terminal/test_terminal.py": 351,
    "tests/terminal/test_trouble.py": 306,
    "tests/test_documentation.py": 374,
    "tests/test_documented_commands.py": 354,
    "tests/torchrun/test_command.py": 354,
    "tests/train/test_trainer_checkpoint.py": 316,
    "tests/train/test_trainer_resume.py": 398,
    "tests/train/test_trainer_shards.py": 471,
    "train/train.py::Trainer": 18,
}
"""Files by their paths, functions and classes as `path::name`."""


class Size(NamedTuple):
    """What was measured."""

    name: str
    line: int
    measure: int
    limit: int
    unit: str

    def __str__(self) -> str:
        path, _, name = self.name.partition("::")
        return f"{path}:{self.line}: {name or 'the file'} has {self.measure} {self.unit}, and may have {self.limit}"


def sizes(tree: str, root: Path = ROOT, *, files_alone: bool = False) -> Iterator[Size]:
    """Every file in a tree and, unless files alone count, its functions and classes."""
    for path in sorted(root.glob(f"{tree}/**/*.py")):
        name, text = str(path.relative_to(root)), path.read_text(encoding="utf-8")
        yield Size(name, 1, len(text.splitlines()), LINES, "lines")
        for node in ast.walk(ast.parse(text)) if not files_alone else ():
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield Size(f"{name}::{node.name}", node.lineno, body_lines(node), BODY, "lines in its body")
            elif isinstance(node, ast.ClassDef):
                yield Size(f"{name}::{node.name}", node.lineno, len(attributes(node)), ATTRIBUTES, "attributes")


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From its first statement to its end; what it takes and its docstring are read at another time."""
    statements = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return (function.end_lineno or 0) - statements[0].lineno + 1 if statements else 0


def attributes(class_: ast.ClassDef) -> set[str]:
    """What its methods set of `self`; a dataclass's fields are a record's."""
    record = any("dataclass" in ast.unparse(decorator) for decorator in class_.decorator_list)
    fields = {each.target.id for each in class_.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)}
    found = {
        node.attr
        for node in ast.walk(class_)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }
    return found - fields if record else found


def measured() -> list[Size]:
    """All of the project; of tests and benchmarks their files alone."""
    found = [size for tree in PRODUCT for size in sizes(tree)]
    assert {size.name.partition("/")[0] for size in found} == {*PRODUCT}
    return found + [size for tree in ("tests", "benchmarks") for size in sizes(tree, files_alone=True)]


def test_nothing_is_larger_than_it_may_be() -> None:
    wrong = [
        str(size._replace(limit=limit)) for size in measured() if size.measure > (limit := LARGER.get(size.name, size.limit))
    ]
    assert not wrong, "split by subject:\n" + "\n".join(wrong)


def test_what_has_become_small_is_in_the_table_no_longer() -> None:
    large = {size.name for size in measured() if size.measure > size.limit}
    assert {*LARGER} - large == set()


def test_the_rules_see_what_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "launcher" / "large.py"
    path.parent.mkdir()
    assigned = "".join(f"        self.a{number} = self.b.c = 0\n" for number in range(13))
    calls = "    call()\n" * 40
    path.write_text(
        f"class Large:\n    def set(self):\n{assigned}@dataclass\nclass Record:\n    a0: int\n    def set(self):\n{assigned}"
        f'def long(\n    a, b\n):\n    """Says\n    more."""\n{calls}    call()\n'
        f"async def short():\n{calls}" + "#\n" * 200
    )

    found = {size.name.rpartition("::")[2]: str(size) for size in sizes("launcher", tmp_path) if size.measure > size.limit}

    assert found == {
        "launcher/large.py": "launcher/large.py:1: the file has 319 lines, and may have 300",
        "Large": "launcher/large.py:1: Large has 13 attributes, and may have 12",
        "long": "launcher/large.py:33: long has 41 lines in its body, and may have 40",
    }
    assert [size.name for size in sizes("launcher", tmp_path, files_alone=True)] == ["launcher/large.py"]
