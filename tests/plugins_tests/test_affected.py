"""`changed`: what the files of a change can affect."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.plugins import affected, subjects
from tests.plugins.subjects import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def of(*paths: str) -> set[str]:
    """Subjects with at least one affected file."""
    return {subjects.subject_of(path) for path in affected.affected(paths).files}


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("launcher/backends/kubernetes/pod.py", {"k8s", "cli", "config", "snapshot", "project"}),
        ("playbooks/start.yml", {"ssh", "project"}),
        ("slurm_templates/job.sbatch.j2", {"slurm", "project"}),
        ("launcher/agent/ssh/run.py", {"agent", "ssh", "project"}),
        ("train/trainer/loop.py", {"train", "benchmarks", "project"}),
        ("benchmarks/start.py", {"benchmarks", "project"}),
        ("docs/kubernetes.md", {"k8s", "project"}),
        ("docs/cli.md", {"project"}),
        ("testbed/kube_node.py", {"k8s", "testbed", "project"}),
        ("tests/plugins/summary.py", {"runner"}),
    ],
)
def test_a_file_affects_the_subjects_of_the_table(path: str, wanted: set[str]) -> None:
    assert (ROOT / path).exists()
    assert of(path) == wanted


def test_the_agent_affects_what_starts_runs_but_not_the_trainer() -> None:
    found = of("launcher/agent/node/agent.py")

    assert {"agent", "cli", "slurm", "ssh", "k8s", "fabric"} <= found
    assert not {"train", "config", "runner"} & found


def test_a_file_of_the_tests_affects_itself_and_what_imports_it() -> None:
    assert affected.affected(["tests/config/test_layers.py"]).files == {"tests/config/test_layers.py"}
    assert affected.affected(["tests/scripts/census.py"]).files >= {"tests/agent/test_census.py"}
    assert of("tests/hangs/conftest.py") == {"hangs"}
    assert of("tests/serve/conftest.py") == {"serve", "api"}
    assert {"slurm", "k8s", "cli"} <= of("tests/command.py")
    assert affected.affected(["tests/conftest.py"]).files == set(subjects.all_files())


def test_an_unknown_file_affects_everything() -> None:
    found = affected.affected(["a/new/thing.txt"])

    assert found.files == set(subjects.all_files())
    assert "everything, for a/new/thing.txt" in found.summary


def test_the_table_names_existing_subjects_and_files_and_covers_every_file_of_the_project() -> None:
    for pattern, words in affected.TABLE:
        for word in words.split():
            assert word in subjects.known() or word == affected.EVERYTHING or (ROOT / word).is_file(), (pattern, word)
    files = [
        str(path.relative_to(ROOT))
        for directory in ("launcher", "train", "playbooks", "docs", "scripts")
        for path in (ROOT / directory).rglob("*.*")
    ]
    unknown = [
        path for path in files if "__pycache__" not in path and affected.EVERYTHING in (affected.targets(path) or ())
    ]
    assert unknown == []


def git(directory: Path, *words: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(("git", *identity, *words), cwd=directory, check=True, capture_output=True, timeout=60)


def test_changed_is_what_differs_from_where_the_main_branch_was_left_with_what_is_not_committed(tmp_path: Path) -> None:
    git(tmp_path, "init", "--initial-branch=main")
    for name in ("kept", "committed", "edited", "ignored", "main only"):
        (tmp_path / name).write_text("1")
    (tmp_path / ".gitignore").write_text("ignored\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    git(tmp_path, "checkout", "-b", "mine")
    (tmp_path / "committed").write_text("2")
    git(tmp_path, "commit", "-a", "-m", "mine")
    git(tmp_path, "checkout", "main")
    (tmp_path / "main only").write_text("2")
    git(tmp_path, "commit", "-a", "-m", "others")
    git(tmp_path, "checkout", "mine")
    (tmp_path / "edited").write_text("2")
    (tmp_path / "new ü").write_text("1")

    assert affected.changed_files(root=tmp_path) == ["committed", "edited", "new ü"]
    assert affected.changed_files("HEAD", root=tmp_path) == ["edited", "new ü"]
    with pytest.raises(SystemExit, match="nosuch"):
        affected.changed_files("nosuch", root=tmp_path)
