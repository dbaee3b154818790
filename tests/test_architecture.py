"""The arrows of docs/architecture.md: who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYERS = [
    {"cli", "__main__"},
    {
        "torchrun",
        "follow",
        "status",
        "summary",
        "announce",
        "interrupts",
        "terminal",
        "terminal_modes",
        "terminal_size",
        "worker_output",
        "examine",
        "examine_links",
        "findings",
        "reports",
        "heat_map",
        "quarantine",
    },
    {"backends"},
    {"bundle", "config", "config_check", "config_file", "config_paths", "runs", "outcome", "reader", "output", "lock", "proc"}
    | {"events", "question", "snapshot", "snapshot_files", "storage"},
    {"credentials", "input_file", "install", "numbers", "trust"},
    {"spec", "options", "errors", "names"},
    {"agent"},
]
TORCH_ALLOWED = {"elastic.py", "elastic_gang.py", "workers_store.py"}


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


def files(pattern: str) -> list[Path]:
    """Files of the project, never none."""
    found = sorted(ROOT.glob(pattern))
    assert found, pattern
    return found


def test_imports_point_downward() -> None:
    wrong = []
    for path in files("launcher/**/*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if module == "launcher.__init__":
            continue
        ours = [name for name, level in imports(path) if level == 0 and name.startswith("launcher.")]
        wrong += [f"{module} imports {name}" for name in ours if name != "launcher.__version__" and layer(name) < layer(module)]
    assert wrong == []


def test_the_agent_imports_the_standard_library_only() -> None:
    wrong = []
    for path in files("launcher/agent/*.py"):
        for name, level in imports(path):
            top = name.split(".")[0]
            if level == 0 and not (top == "torch" and path.name in TORCH_ALLOWED) and top not in sys.stdlib_module_names:
                wrong.append(f"{path.name} imports {name}")
    assert wrong == []


def test_the_agents_own_process_imports_no_torch_and_nothing_that_is_slow_to_import() -> None:
    """Every node pays for what an agent imports, and every host that is reached over SSH."""
    slow = {"torch", "dataclasses", "inspect", "argparse", "tarfile", "shutil", "traceback", "glob", "random", "subprocess"}
    modules = ", ".join(f"launcher.agent.{name}" for name in ("__main__", "host", "node", "fabric_env", "reach", "prefork"))
    code = f"import sys, {modules}; print(*({slow!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, timeout=60, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_bundled_scripts_never_import_the_launcher() -> None:
    wrong = [path for path in files("train/**/*.py") if any(name.split(".")[0] == "launcher" for name, _ in imports(path))]
    assert wrong == []


def test_only_output_prints() -> None:
    wrong = []
    for path in files("launcher/**/*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        prints = any(isinstance(func, ast.Name) and func.id == "print" for func in calls)
        if prints and path.parent.name != "agent" and path.parts[-2:] != ("launcher", "output.py"):
            wrong.append(path)
    assert wrong == []


def test_the_rules_see_what_they_forbid(tmp_path: Path) -> None:
    """Else a file that is not understood would be a file without imports."""
    path = tmp_path / "module.py"
    path.write_text(
        "import torch.nn\ndef late():\n    from launcher.cli import run\n    from launcher import runs\n    from . import near\n"
    )

    found = [("torch.nn", 0), ("launcher.cli", 0), ("launcher", 0), ("launcher.runs", 0), ("", 1)]
    assert imports(path) == found
    assert [layer(name) for name in ("launcher.cli.ls", "launcher.follow", "launcher.backends.local", "launcher.agent.node")] == [
        0,
        1,
        2,
        6,
    ]
