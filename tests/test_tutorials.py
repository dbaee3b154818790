"""Every code block of the pages for beginners is run; those for clusters beside the clusters' other tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import tutorial
from tests.command import ROOT, Result

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

HERE = {"start.md", "local.md"}
"""Pages that are played on this host."""


@pytest.mark.torch
@pytest.mark.parametrize("path", [path for path in tutorial.PAGES if path.name in HERE], ids=lambda path: path.stem)
def test_a_page_runs_on_this_host(distlaunch: Cli, path: Path) -> None:
    """The set-up command is README's, which tests/test_documented_commands.py runs."""
    text = path.read_text("utf-8")
    for line in (ROOT / "README.md").read_text("utf-8").splitlines():
        if line.startswith("scripts/"):
            text = text.replace(f"```bash\n{line}\n```\n", "")
    page = distlaunch.write(path.name, text)

    tutorial.play(page, distlaunch, distlaunch.write)


def test_every_page_is_played() -> None:
    tests = "".join(path.read_text("utf-8") for path in (ROOT / "tests").glob("*/test_tutorial.py"))

    assert {path.name for path in tutorial.PAGES} - HERE == {
        name for name in ("slurm.md", "ssh.md", "kubernetes.md") if name in tests
    }
    assert [path.name for path in tutorial.PAGES if len(tutorial.blocks(path)) < 4] == []
    assert [path.name for path in tutorial.PAGES[1:] if tutorial.EXIT_CODE not in path.read_text("utf-8")] == [], (
        "a failing run"
    )


@pytest.mark.parametrize(
    ("shown", "output", "is_right"),
    [
        (["a", "b 3.0 s"], "b 1.2 s\na\n", True),
        (["a"], "a\nb\n", False),
        (["a", "..."], "a\nb\n", True),
        (["c", "..."], "a\nb\n", False),
    ],
)
def test_a_difference_in_output_is_found(shown: list[str], output: str, is_right: bool) -> None:
    if is_right:
        tutorial.compare("x", shown, output)
    else:
        with pytest.raises(AssertionError):
            tutorial.compare("x", shown, output)


@pytest.mark.parametrize(
    "block",
    ["bash\nls\n", "console\n$ distlaunch x\n", "rust\nfn main() {}\n", "console\n$ distlaunch x\n$ echo $?\n0\n"],
)
def test_a_block_that_is_not_understood_or_fails_is_an_error(tmp_path: Path, block: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n```{block}```\n")

    with pytest.raises(AssertionError):
        tutorial.play(page, lambda *_: Result(1, "", ""), lambda *_: None)
