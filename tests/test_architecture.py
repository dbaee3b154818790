"""The arrows of docs/architecture.md: who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = [
    {"cli", "__main__"},
    {
        "follow",
        "status",
        "summary",
        "announce",
        "interrupts",
        "worker_output",
        "examine",
        "examine_links",
        "findings",
        "heat_map",
        "quarantine",
    },
    {"backends"},
    {"bundle", "config", "config_file", "runs", "outcome", "reader", "output", "proc", "snapshot", "snapshot_files", "storage"},
    {"spec", "options", "errors"},
    {"agent"},
]
TORCH_ALLOWED = {"elastic.py", "elastic_gang.py"}


def layer(module: str) -> int:
    """How deep a module of ours is; 0 is the top."""
    name = [*module.split("."), ""][1]
    return next(depth for depth, names in enumerate(LAYERS) if name in names)


def imports(path: Path) -> list[tuple[str, int]]:
    """Every module that a file names in an import, with the level of relative ones."""
    found: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.module or "", node.level))
            if node.module in ("launcher", "launcher.agent") and not node.level:
                found += [(f"{node.module}.{alias.name}", 0) for alias in node.names]
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "launcher").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downward(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    if path.name == "__init__.py" and path.parent.name == "launcher":
        return
    for name, level in imports(path):
        if level == 0 and name.startswith("launcher.") and name != "launcher.__version__":
            assert layer(name) >= layer(module), f"{module} imports {name}"


@pytest.mark.parametrize("path", sorted((ROOT / "launcher/agent").glob("*.py")), ids=lambda path: path.name)
def test_the_agent_imports_the_standard_library_only(path: Path) -> None:
    for name, level in imports(path):
        top = name.split(".")[0]
        if level == 0 and not (top == "torch" and path.name in TORCH_ALLOWED):
            assert top in sys.stdlib_module_names, f"{path.name} imports {name}"


def test_the_agents_own_process_imports_no_torch_and_nothing_that_is_slow_to_import() -> None:
    """Every node pays for what an agent imports, and every host that is reached over SSH."""
    slow = {"torch", "dataclasses", "inspect", "argparse", "tarfile", "shutil", "traceback", "glob", "random", "subprocess"}
    modules = ", ".join(f"launcher.agent.{name}" for name in ("__main__", "host", "node", "fabric_env", "reach", "prefork"))
    code = f"import sys, {modules}; print(*({slow!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, timeout=60, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("path", sorted((ROOT / "train").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_bundled_scripts_never_import_the_launcher(path: Path) -> None:
    assert not [name for name, _ in imports(path) if name.split(".")[0] == "launcher"]


@pytest.mark.parametrize("path", sorted((ROOT / "launcher").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_output_prints(path: Path) -> None:
    if path.parts[-2:] == ("launcher", "output.py"):
        return
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    printing = [func for func in calls if isinstance(func, ast.Name) and func.id == "print"]
    assert not printing or path.parts[-2] == "agent", "the launcher prints in output.py only"
