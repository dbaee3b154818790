"""What changed files can affect: by a table from files to subjects, and by imports among the tests' own files."""

from __future__ import annotations

import ast
import subprocess
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.plugins import subjects
from tests.plugins.subjects import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

RUNS = "api chaos agent cli runs snapshot fabric slurm ssh k8s benchmarks thirdparty project"
"""Subjects whose tests start runs."""

SIZES = "tests/test_sizes.py"
ARCHITECTURE = f"tests/test_architecture.py tests/test_single_places.py {SIZES}"
WHEEL = "tests/test_wheel.py"
TEXTS = (
    "tests/test_install.py tests/test_prose.py tests/test_documentation.py tests/test_documented_commands.py "
    "tests/test_documented_tools.py tests/test_documented_cli.py tests/test_documented_settings.py "
    "tests/test_documented_trainer.py tests/test_documented_facts.py tests/test_documented_numbers.py"
)
TUTORIALS = "tests/test_tutorials.py"
EVERYTHING = "*"
COMMON = "tests/conftest.py"
"""Tests name what it imports themselves, so only a change of this file affects all tests."""

TABLE: tuple[tuple[str, str], ...] = (
    # What belongs to one backend.
    ("launcher/backends/kubernetes/*", f"k8s cli config snapshot {ARCHITECTURE}"),
    ("launcher/backends/slurm/submitit.py", f"slurm {ARCHITECTURE}"),
    ("launcher/backends/slurm/backend.py", f"slurm cli config snapshot fabric {ARCHITECTURE}"),
    ("launcher/backends/slurm/*", f"slurm cli config snapshot {ARCHITECTURE}"),
    ("slurm_templates/*", f"slurm {WHEEL}"),
    ("launcher/backends/ansible/*", f"ssh cli config snapshot {ARCHITECTURE}"),
    ("playbooks/*", f"ssh {WHEEL} {SIZES}"),
    # The agent.
    ("launcher/agent/ssh/*", f"agent ssh {ARCHITECTURE}"),
    ("launcher/agent/system/unpack.py", f"agent ssh {ARCHITECTURE}"),
    ("launcher/agent/forkserver/prefork.py", f"agent ssh {ARCHITECTURE}"),
    ("launcher/agent/schedulers/slurm.py", f"agent slurm fabric {ARCHITECTURE}"),
    ("launcher/agent/system/processes.py", f"{RUNS} testbed"),
    ("launcher/agent/*", RUNS),
    # What users see.
    ("launcher/doctor/heat_map.py", f"fabric {ARCHITECTURE}"),
    ("launcher/doctor/*", f"fabric slurm ssh k8s {ARCHITECTURE}"),
    ("launcher/settings/quarantine.py", f"fabric slurm ssh k8s {ARCHITECTURE}"),
    ("launcher/settings/verdicts.py", f"fabric ssh k8s {ARCHITECTURE}"),
    ("distlaunch/*", f"api {ARCHITECTURE} {WHEEL}"),
    ("launcher/service/examination.py", f"api fabric cli slurm ssh k8s {ARCHITECTURE}"),
    ("launcher/cli/commands/doctor.py", f"api fabric cli slurm ssh k8s {ARCHITECTURE}"),
    ("launcher/*", f"{RUNS} config"),
    ("train/doctor.py", f"fabric train slurm ssh k8s {ARCHITECTURE}"),
    ("train/reduce.py", f"train cli agent slurm ssh k8s {ARCHITECTURE} {WHEEL}"),
    ("train/*", f"train benchmarks {ARCHITECTURE} {WHEEL}"),
    ("benchmarks/*", f"benchmarks {SIZES}"),
    # Documentation.
    ("docs/kubernetes.md", f"tests/k8s/test_control_plane.py tests/k8s/test_rights.py {TEXTS}"),
    ("docs/tutorials/slurm.md", f"tests/slurm/test_tutorial.py {TUTORIALS} {TEXTS}"),
    ("docs/tutorials/ssh.md", f"tests/ansible/test_tutorial.py {TUTORIALS} {TEXTS}"),
    ("docs/tutorials/kubernetes.md", f"tests/k8s/test_tutorial.py {TUTORIALS} {TEXTS}"),
    ("docs/tutorials/*", f"{TUTORIALS} {TEXTS}"),
    ("docs/start.md", f"{TUTORIALS} {TEXTS}"),
    ("docs/api.md", f"api {TEXTS}"),
    ("docs/schema/*.json", "tests/test_schema.py"),
    ("docs/*", TEXTS),
    ("CONTRIBUTING.md", TEXTS),
    ("mkdocs.yml", TEXTS),
    (".pre-commit-config.yaml", TEXTS),
    ("README.md", f"{WHEEL} {TEXTS}"),
    ("LICENSE", WHEEL),
    ("*.md", "tests/test_install.py"),
    (".gitignore", "snapshot"),
    # How tests are run.
    ("pyproject.toml", EVERYTHING),
    ("scripts/_environment", EVERYTHING),
    ("scripts/distlaunch", "project"),
    ("scripts/schema", "tests/test_schema.py"),
    ("scripts/*", "runner"),
    (".ci/*", "runner"),
    ("tests/forked_*.py", EVERYTHING),
    ("tests/plugins/*", "runner"),
    ("tests/mutation/*", "runner"),
    ("testbed/kube*", f"k8s testbed {SIZES}"),
    ("testbed/slurm*", f"slurm fabric testbed {SIZES}"),
    ("testbed/accounting.py", f"slurm testbed {SIZES}"),
    ("testbed/ssh.py", f"ssh testbed {SIZES}"),
    ("testbed/*", f"slurm ssh k8s fabric testbed {SIZES}"),
)
"""Patterns, and what a change can affect: subjects, test files, everything, or nothing. The first match counts."""


class Affected(NamedTuple):
    """Test files, and a line that gives the reason."""

    files: frozenset[str]
    summary: str


def changed_files(since: str | None = None, root: Path = ROOT) -> list[str]:
    """Files that differ from where this branch left the main one, including those that git does not track yet."""
    base = since or merge_base(root)
    names = git(root, "diff", "--name-only", "--no-renames", "-z", base, "--").split("\0")
    names += git(root, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
    return sorted(filter(None, set(names)))


def merge_base(root: Path) -> str:
    """Where this branch left the main one; on the main branch itself, where that left its remote branch."""
    for name in ("origin/HEAD", "origin/main", "origin/master", "main", "master"):
        found = git(root, "merge-base", "HEAD", name, check=False).strip()
        if found:
            return found
    return "HEAD"


def git(root: Path, *words: str, check: bool = True) -> str:
    """The output of git; empty if it fails and may."""
    argv = ("git", *words)
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode and check:
        raise SystemExit(f"error: {' '.join(argv)}: {done.stderr.strip()}")
    return "" if done.returncode else done.stdout


def affected(changed: Iterable[str], root: Path = ROOT) -> Affected:
    """The test files that these files can affect."""
    changed = list(changed)
    every = subjects.all_files(root)
    known = subjects.known(root)
    found: set[str] = set()
    reasons = []
    for path in changed:
        words = targets(path)
        if words is None:  # among the tests
            mine = users(path, root)
            found |= mine & set(every)
        elif EVERYTHING in words:
            reasons.append(f"everything, for {path}")
            found |= set(every)
        else:
            found |= {file for file in every if subjects.subject_of(file) in words or file in words}
    wanted = sorted({subjects.subject_of(file) for file in found}, key=known.index)
    summary = f"changed: {len(changed)} files, which can affect {len(found)} of {len(every)} test files"
    return Affected(frozenset(found), f"{summary} ({', '.join(reasons) or ' '.join(wanted) or 'nothing'})")


def targets(path: str) -> frozenset[str] | None:
    """What the table has for a file; None: it belongs to the tests. An unknown file may affect everything."""
    for pattern, words in TABLE:
        if fnmatchcase(path, pattern):
            return frozenset(words.split())
    return None if path.startswith("tests/") else frozenset({EVERYTHING})


def users(path: str, root: Path = ROOT) -> set[str]:
    """A file of the tests and all others that import it; a conftest counts as imported by what is below its directory.

    A file that is not Python affects its directory.
    """
    graph = imports(root)
    if not path.endswith(".py"):
        directory = str(Path(path).parent)
        return {name for name in graph if name.startswith(f"{directory}/")} or set(graph)
    found = {path}
    fresh = [path]
    while fresh:
        name = fresh.pop()
        using = {other for other, names in graph.items() if name in names and other != COMMON}
        if Path(name).name == "conftest.py":
            using |= {other for other in graph if other.startswith(f"{Path(name).parent}/")}
        fresh += sorted(using - found)
        found |= using
    return found


@cache
def imports(root: Path = ROOT) -> dict[str, frozenset[str]]:
    """Which of the tests' own files each one imports, or names, as `census.py` for tests/scripts/census.py."""
    paths = sorted(str(path.relative_to(root)) for path in (root / subjects.TESTS).rglob("*.py"))
    scripts = {Path(path).name: path for path in paths if path.startswith("tests/scripts/")}
    graph = {}
    for path in paths:
        text = (root / path).read_text(encoding="utf-8", errors="replace")
        named = {script for name, script in scripts.items() if name in text and script != path}
        graph[path] = frozenset(named | {place for name in modules(text) for place in places(name) if place in paths})
    return graph


def modules(text: str) -> set[str]:
    """Every module that a file names in an import, or in `pytest_plugins`."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("tests."):
            found.add(node.value)
    return found


def places(module: str) -> tuple[str, str]:
    """The files that a module may be in."""
    path = module.replace(".", "/")
    return f"{path}.py", f"{path}/__init__.py"
