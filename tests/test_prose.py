"""`scripts/prose` finds what it is meant to, on the right line: in pages, docstrings and comments, not in code."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from tests import prose
from tests.command import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The gang restarts.", [(1, "gang")]),
        ("# A title\n\nIts folders are\nthe host's.", [(3, "folders")]),
        ("`gang` and [a word](directory/gang.md) of it", []),
        ("```python\ngang = directory\n```\nA gang.", [(4, "gang")]),
        ("on this machine; other machines follow", [(1, "machines")]),
        ("It stops; it waits; it ends.", [(1, "chained semicolons")]),
        ("| one; two | three; four |", []),
        ("word " * 30, [(1, "150 characters")]),
        ("| " + "word " * 30 + "|", []),
        ("A list:\n- one\n- two", [(2, "a list right after a paragraph")]),
        ("A list:\n\n- one\n  more of it\n- two", []),
    ],
)
def test_what_an_editor_would_change_is_found(tmp_path: Path, text: str, found: list[tuple[int, str]]) -> None:
    (tmp_path / "page.md").write_text(text)

    assert [(one.line, one.found) for one in prose.examine(tmp_path / "page.md")] == found


def test_the_pages_have_no_findings_and_all_are_examined() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.prose"], cwd=ROOT, capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (0, "")
    assert {ROOT / "README.md", ROOT / "docs/tutorials/slurm.md"} <= set(prose.pages())
    assert {ROOT / "launcher/spec.py", ROOT / "train/train.py"} <= set(prose.sources())


def test_a_finding_is_printed_with_its_place_and_what_is_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    for name, text in {
        "README.md": "One gang.\n",
        "CONTRIBUTING.md": "\n",
        "docs/torchrun.md": "As it should be.\n",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    monkeypatch.setattr(prose, "pages", lambda pages=prose.pages: pages(tmp_path))
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher/code.py").write_text('"""One\n\ngang."""\n\ngang = "gang"  # a gang\n')
    monkeypatch.setattr(prose, "sources", lambda sources=prose.sources: sources(tmp_path))
    monkeypatch.setattr(prose, "rules", lambda: {"words": {"gang": "worker group"}})

    assert prose.main() == 1
    assert capsys.readouterr().out.splitlines() == [
        "README.md:1: gang -> worker group",
        "launcher/code.py:3: gang -> worker group",
        "launcher/code.py:5: gang -> worker group",
    ]


def test_pre_commit_hooks_are_what_lint_runs() -> None:
    """They are local, so none is downloaded."""
    listed = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    lint = (ROOT / "scripts/lint").read_text("utf-8").splitlines()

    assert [repo["repo"] for repo in listed] == ["local"]
    assert len(listed[0]["hooks"]) >= 5
    assert [
        hook["entry"] for hook in listed[0]["hooks"] if not [line for line in lint if line.startswith(hook["entry"])]
    ] == []
