"""The arrows of docs/architecture.md: who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher.agent.failures import Failure

ROOT = Path(__file__).parents[1]
TREES = ("launcher", "distlaunch", "train", "testbed", "tests", "benchmarks")
LAYERS = (
    {"cli", "__main__"},
    {"torchrun", "service"},
    {"console", "doctor"},
    {"backends"},
    {"settings", "payload"},
    {"runs"},
    {"spec", "output", "system"},
    {"errors", "results"},
    {"agent"},
)
"""Packages, and files beside them, of `launcher`; who is above may import who is below."""

TORCH_ALLOWED = {"group/elastic.py", "group/dynamic_rendezvous.py", "group/torchelastic.py", "forkserver/workers_store.py"}


class Import(NamedTuple):
    """One file's import of another file of the project, wherever in it: at its top, in a function, or for type checkers alone."""

    path: Path
    line: int
    target: Path

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.target}"


def files(pattern: str, root: Path = ROOT) -> list[Path]:
    """Files of the project, never none."""
    found = sorted(root.glob(pattern))
    assert found, pattern
    return found


def named(path: Path) -> list[tuple[str, tuple[str, ...], int, int]]:
    """Every import in a file: module, names, level of a relative one, line."""
    found: list[tuple[str, tuple[str, ...], int, int]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, (), 0, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.module or "", tuple(alias.name for alias in node.names), node.level, node.lineno))
    return found


def resolved(path: Path, root: Path = ROOT) -> list[Import]:
    """Its imports of files below `root`; scripts of `train` find their own modules beside them."""
    found = []
    own = path.relative_to(root)
    for module, names, level, line in named(path):
        steps = [*own.parts[: len(own.parts) - level]] if level else []
        for tops in ([], [own.parts[0]] if own.parts[0] == "train" and not level else None):
            if tops is None:
                continue
            base = root.joinpath(*tops, *steps, *filter(None, module.split(".")))
            for name in names or ("",):
                target = next((place for place in places(base, name) if place.is_file()), None)
                if target is not None:
                    found.append(Import(own, line, target.relative_to(root)))
    return found


def places(base: Path, name: str) -> list[Path]:
    """Where `from base import name` may find what it names: a module of that name, or something in `base` itself."""
    inner = base / name
    return [*([inner.with_suffix(".py"), inner / "__init__.py"] if name else []), base.with_suffix(".py"), base / "__init__.py"]


def imports_within(tree: str) -> list[Import]:
    """All imports in a tree of files of the same one; never none."""
    found = [each for path in files(f"{tree}/**/*.py") for each in resolved(path) if each.target.parts[0] == tree]
    assert found, tree
    return found


def layer(path: Path) -> int:
    """How deep a file of the launcher lies; 0 is the top."""
    return next(depth for depth, names in enumerate(LAYERS) if Path(path.parts[1]).stem in names)


def package(path: Path) -> Path:
    """What a file belongs to: its directory. One that stands beside packages, as at the top of a tree, counts for itself."""
    beside = (ROOT / path.parent).glob("*/__init__.py")
    return path if any(beside) else path.parent


def circle(imports: list[Import], *, packages: bool) -> list[Import]:
    """A way by imports from a file, or from a package, back to itself; empty: there is none."""
    arrows: dict[Path, list[Import]] = defaultdict(list)
    for each in imports:
        start, end = (package(each.path), package(each.target)) if packages else (each.path, each.target)
        if start != end:
            arrows[start].append(each)
    done: set[Path] = set()
    way: list[Import] = []
    places: list[Path] = []

    def search(place: Path) -> list[Import]:
        places.append(place)
        for each in arrows[place]:
            target = package(each.target) if packages else each.target
            if target in places:
                return [*way[places.index(target) :], each]
            if target not in done:
                way.append(each)
                if found := search(target):
                    return found
                way.pop()
        done.add(places.pop())
        return []

    for place in sorted(arrows):
        if place not in done and (found := search(place)):
            return found
    return []


@pytest.mark.parametrize("tree", TREES)
def test_no_file_imports_itself_by_way_of_others(tree: str) -> None:
    """Whatever kind of import closes the circle."""
    found = circle(imports_within(tree), packages=False)
    assert not found, "a circle of imports:\n" + "\n".join(map(str, found))


@pytest.mark.parametrize("tree", ["launcher", "train", "testbed"])
def test_no_package_imports_itself_by_way_of_others(tree: str) -> None:
    found = circle(imports_within(tree), packages=True)
    assert not found, "a circle of packages:\n" + "\n".join(map(str, found))


def test_packages_of_the_launcher_import_those_below_them_alone() -> None:
    wrong = [
        each
        for each in imports_within("launcher")
        if each.target != Path("launcher/__init__.py") and layer(each.target) < layer(each.path)
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_the_public_package_is_built_on_the_service_and_nothing_is_built_on_it() -> None:
    """The command line stands beside it, on the same functions; nothing knows a backend."""
    every = [each for path in files("distlaunch/**/*.py") for each in resolved(path)]
    used = {Path(*each.target.parts[:2]) for each in every if each.target.parts[0] == "launcher"}
    inner = {Path("launcher", name) for name in ("cli", "console", "torchrun", "backends", "output.py")}

    assert Path("launcher/service") in used
    assert not [each for each in every if Path(*each.target.parts[:2]) in inner and each.path != Path("distlaunch/__main__.py")]
    trees = [path for tree in ("launcher", "train", "testbed") for path in files(f"{tree}/**/*.py")]
    assert not [path for path in trees for module, *_ in named(path) if module.split(".")[0] == "distlaunch"]


def test_a_backend_is_named_by_no_other_file() -> None:
    """It is found by its directory, so that one more is one more directory."""
    wrong = [
        each
        for each in imports_within("launcher")
        if len(each.target.parts) > 3 and each.target.parts[1] == "backends" and each.path.parts[:3] != each.target.parts[:3]
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_the_agent_imports_the_standard_library_only() -> None:
    wrong = []
    for path in files("launcher/agent/**/*.py"):
        own = str(path.relative_to(ROOT / "launcher/agent"))
        for module, _, level, line in named(path):
            top = module.split(".")[0]
            if level == 0 and not (top == "torch" and own in TORCH_ALLOWED) and top not in sys.stdlib_module_names:
                wrong.append(f"{own}:{line} imports {module}")
    assert wrong == []


@pytest.mark.parametrize(
    ("library", "directory"),
    [("typer", "launcher/cli"), ("rich", "launcher/console"), ("kubernetes", "launcher/backends/kubernetes")],
)
def test_a_library_is_known_in_one_place(library: str, directory: str) -> None:
    using = {path for path in files("launcher/**/*.py") for module, *_ in named(path) if module.split(".")[0] == library}
    assert using
    assert not [path for path in using if not path.is_relative_to(ROOT / directory)]


def test_the_testbed_stands_alone() -> None:
    """Other projects use it without ours."""
    wrong = [
        f"{path}:{line} imports {module}"
        for path in files("testbed/**/*.py")
        for module, _, _, line in named(path)
        if module.split(".")[0] in ("launcher", "tests", "train", "benchmarks")
    ]
    assert wrong == []


def test_the_agents_own_process_imports_no_torch_and_nothing_that_is_slow_to_import() -> None:
    """Every node pays for what an agent imports, and every host that is reached over SSH."""
    slow = {"torch", "dataclasses", "inspect", "argparse", "tarfile", "shutil", "traceback", "glob", "random", "subprocess"}
    names = ("__main__", "ssh.calls", "node.agent", "fabric.network_variables", "network.reach", "forkserver.prefork")
    modules = ", ".join(f"launcher.agent.{name}" for name in names)
    code = f"import sys, {modules}; print(*({slow!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, timeout=60, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_bundled_scripts_never_import_the_launcher() -> None:
    wrong = [path for path in files("train/**/*.py") if any(module.split(".")[0] == "launcher" for module, *_ in named(path))]
    assert wrong == []


def test_classes_of_failures_are_named_in_their_table_alone() -> None:
    """A new one is a row there and one in docs/agent-stream.md. A name with another meaning, too, counts as a class alone."""
    unmistakable = {each.value for each in Failure} - {"node", "fabric", "killed", "collective", "timeout"}
    wrong, seen = [], set()
    for path in files("launcher/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            found = [each for each in as_class(node) if each.value in {*Failure}]
            found += [node] if isinstance(node, ast.Constant) and node.value in unmistakable else []
            if path == ROOT / "launcher/agent/failures.py":
                seen |= {each.value for each in found}
            else:
                wrong += [f"{path.relative_to(ROOT)}:{each.lineno} has {each.value!r}, no Failure" for each in found]
    assert wrong == []
    assert seen == unmistakable


def as_class(node: ast.AST) -> list[ast.Constant]:
    """Texts that stand for a class of failures: the value of "class" or `kind`, or what one of these is compared with."""
    if isinstance(node, ast.Dict):
        values = [value for key, value in zip(node.keys, node.values, strict=True) if is_text(key, "class")]
    elif isinstance(node, ast.Compare) and any(is_text(each, "class") for each in ast.walk(node.left)):
        values = node.comparators
    elif isinstance(node, ast.keyword) and node.arg in ("kind", "reason", "why_again", "sigterm_means"):
        values = [node.value]
    elif isinstance(node, ast.Call) and node.args and is_text(node.args[0], "class"):
        values = node.args[1:]
    else:
        return []
    inner = [each for value in values for each in ast.walk(value)]
    return [each for each in inner if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def is_text(node: ast.AST | None, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def test_only_output_prints() -> None:
    wrong = []
    for path in files("launcher/**/*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        prints = any(isinstance(func, ast.Name) and func.id == "print" for func in calls)
        if prints and not path.is_relative_to(ROOT / "launcher/agent") and path != ROOT / "launcher/output.py":
            wrong.append(path)
    assert wrong == []


def test_the_rules_see_what_they_forbid(tmp_path: Path) -> None:
    """Else a file that is not understood would be a file without imports."""
    texts = {
        "launcher/__init__.py": "",
        "launcher/cli/__init__.py": "",
        "launcher/cli/run.py": "def late():\n    from launcher.runs import records\n",
        "launcher/runs/__init__.py": "",
        "launcher/runs/records.py": "if TYPE_CHECKING:\n    from .lock import Lock\nimport torch.nn\n",
        "launcher/runs/lock.py": "from ..cli import run\nfrom launcher import runs\n",
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    found = [each for path in files("launcher/**/*.py", tmp_path) for each in resolved(path, tmp_path)]

    assert [str(each) for each in circle(found, packages=False)] == [
        "launcher/cli/run.py:2 imports launcher/runs/records.py",
        "launcher/runs/records.py:2 imports launcher/runs/lock.py",
        "launcher/runs/lock.py:1 imports launcher/cli/run.py",
    ]
    assert [str(each) for each in circle(found, packages=True)] == [
        "launcher/cli/run.py:2 imports launcher/runs/records.py",
        "launcher/runs/lock.py:1 imports launcher/cli/run.py",
    ]
    assert [(layer(each.path), layer(each.target)) for each in found if each.path.name == "run.py"] == [(0, 5)]
