"""The directions of imports in docs/architecture.md: which package may import which."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.imports import ROOT, circle, files, imports_within, named, resolved

TREES = ("launcher", "distlaunch", "train", "testbed", "tests", "benchmarks")
LAYERS = (
    {"cli", "__main__"},
    {"server"},
    {"torchrun", "service"},
    {"console", "doctor", "pages"},
    {"backends"},
    {"settings", "payload", "login"},
    {"runs"},
    {"spec", "output", "system"},
    {"errors", "results"},
    {"agent"},
)
"""Packages of `launcher`, and files beside them; each may import those below it."""

TORCH_ALLOWED = {"forkserver/workers_store.py"}


def layer(path: Path) -> int:
    """The layer of a file of the launcher; 0 is the top."""
    return next(depth for depth, names in enumerate(LAYERS) if Path(path.parts[1]).stem in names)


@pytest.mark.parametrize("tree", TREES)
def test_no_file_imports_itself_through_others(tree: str) -> None:
    """Whichever kind of import closes the circle."""
    found = circle(imports_within(tree), packages=False)
    assert not found, "a circle of imports:\n" + "\n".join(map(str, found))


@pytest.mark.parametrize("tree", ["launcher", "train", "testbed"])
def test_no_package_imports_itself_through_others(tree: str) -> None:
    found = circle(imports_within(tree), packages=True)
    assert not found, "a circle of packages:\n" + "\n".join(map(str, found))


def test_packages_of_the_launcher_import_only_those_below_them() -> None:
    wrong = [
        each
        for each in imports_within("launcher")
        if each.target != Path("launcher/__init__.py") and layer(each.target) < layer(each.path)
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_the_public_package_is_built_on_the_service_and_nothing_is_built_on_it() -> None:
    """The command line uses the same functions, beside it; neither knows a backend."""
    every = [each for path in files("distlaunch/**/*.py") for each in resolved(path)]
    used = {Path(*each.target.parts[:2]) for each in every if each.target.parts[0] == "launcher"}
    inner = {Path("launcher", name) for name in ("cli", "console", "torchrun", "backends", "output.py")}

    assert Path("launcher/service") in used
    assert not [
        each for each in every if Path(*each.target.parts[:2]) in inner and each.path != Path("distlaunch/__main__.py")
    ]
    trees = [path for tree in ("launcher", "train", "testbed") for path in files(f"{tree}/**/*.py")]
    assert not [path for path in trees for module, *_ in named(path) if module.split(".")[0] == "distlaunch"]


def test_no_other_file_names_a_backend() -> None:
    """A backend is found by its directory, so adding one is adding a directory."""
    wrong = [
        each
        for each in imports_within("launcher")
        if len(each.target.parts) > 3
        and each.target.parts[1] == "backends"
        and each.path.parts[:3] != each.target.parts[:3]
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_the_agent_imports_only_the_standard_library() -> None:
    standard = {*sys.stdlib_module_names, "_sha2", "_sha256"}  # one of these, depending on the version
    wrong = []
    for path in files("launcher/agent/**/*.py"):
        own = str(path.relative_to(ROOT / "launcher/agent"))
        for module, _, level, line in named(path):
            top = module.split(".")[0]
            if level == 0 and not (top == "torch" and own in TORCH_ALLOWED) and top not in standard:
                wrong.append(f"{own}:{line} imports {module}")
    assert wrong == []


def test_the_testbed_imports_nothing_of_the_project() -> None:
    """Other projects can use it on its own."""
    wrong = [
        f"{path}:{line} imports {module}"
        for path in files("testbed/**/*.py")
        for module, _, _, line in named(path)
        if module.split(".")[0] in ("launcher", "tests", "train", "benchmarks")
    ]
    assert wrong == []


def test_the_agents_own_process_imports_neither_torch_nor_slow_modules() -> None:
    """Every node pays for the agent's imports, and so does every host that is reached over SSH."""
    slow = {
        "torch",
        "dataclasses",
        "inspect",
        "argparse",
        "tarfile",
        "shutil",
        "traceback",
        "glob",
        "random",
        "subprocess",
    }
    names = ("__main__", "ssh.calls", "node.agent", "fabric.network_variables", "network.reach", "forkserver.prefork")
    modules = ", ".join(f"launcher.agent.{name}" for name in names)
    code = f"import sys, {modules}; print(*({slow!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, timeout=60, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_bundled_scripts_never_import_the_launcher() -> None:
    wrong = [
        path for path in files("train/**/*.py") if any(module.split(".")[0] == "launcher" for module, *_ in named(path))
    ]
    assert wrong == []


def test_forbidden_imports_are_found(tmp_path: Path) -> None:
    """Otherwise a file that is not understood would pass as one without imports."""
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
    assert [(layer(each.path), layer(each.target)) for each in found if each.path.name == "run.py"] == [(0, 6)]
