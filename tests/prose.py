"""`scripts/prose`: what an editor would change in pages, docstrings and comments, as FILE:LINE: what -> better."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "scripts/words.toml"

PRODUCT = ("launcher", "distlaunch", "train", "testbed", "benchmarks", "playbooks")
WIDTH = 120
"""Of a line that can be wrapped: code, tables and links may be longer."""


class Finding(NamedTuple):
    """A place in a page, and what would be better there."""

    line: int
    found: str
    better: str


def rules() -> dict[str, Any]:
    """The words and the exceptions."""
    return tomllib.loads(RULES.read_text("utf-8"))


def pages(root: Path = ROOT) -> list[Path]:
    """The pages that are examined; CHANGELOG.md is a record of its time."""
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]


def sources(root: Path = ROOT) -> list[Path]:
    """The Python files whose docstrings and comments are examined."""
    return sorted(path for tree in PRODUCT for path in (root / tree).rglob("*.py"))


def prose(text: str) -> Iterator[tuple[int, str, str]]:
    """Lines outside of code blocks: number, text as written, and text without code, link targets and comments."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line, re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+|<!--.*?-->", "`", line)


def wording(text: str, words: Mapping[str, str]) -> Iterator[Finding]:
    """Words for which the field has others, and sentences chained by semicolons."""
    for number, _, plain in prose(text):
        for pattern, better in words.items():
            for found in re.finditer(rf"\b{pattern}\b", plain, re.IGNORECASE):
                yield Finding(number, found[0], better)
        for sentence in re.split(r"(?<=[.!?:])\s|\|", plain):
            if sentence.count(";") > 1:
                yield Finding(number, "chained semicolons", "sentences")


def form(text: str) -> Iterator[Finding]:
    """Lines that are too long."""
    for number, line, _ in prose(text):
        if len(line) > WIDTH and not line.startswith("|") and " " in line[:WIDTH].strip("- "):
            yield Finding(number, f"{len(line)} characters", f"{WIDTH} at most")


def lists(text: str) -> Iterator[Finding]:
    """Lists that the site's Markdown takes for part of the paragraph before them."""
    item, before, inside = re.compile(r"([-*]|\d+\.) "), "", False
    for number, line, _ in prose(text):
        if item.match(line):
            if before.strip() and not inside and not before.startswith("#"):
                yield Finding(number, "a list right after a paragraph", "an empty line between them")
            inside = True
        elif not line.strip():
            inside = False
        before = line


def commentary(source: str) -> str:
    """Docstrings and comments of Python code, each on its own lines, and nothing else."""
    lines = [""] * (source.count("\n") + 2)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0] - 1] = re.sub(r"^#\W*|noqa.*|type: ignore.*|fmt: \w+", "", token.string)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for number, line in enumerate(node.value.value.splitlines()):
                lines[node.lineno - 1 + number] = line
    return "\n".join(lines)


def examine(path: Path) -> list[Finding]:
    """All findings of a page, or of the docstrings and comments of a Python file, in order."""
    text, words = path.read_text("utf-8"), rules()["words"]
    if path.suffix == ".py":
        return sorted(wording(commentary(text), words))
    return sorted([*lists(text), *wording(text, words), *form(text)])


def main() -> int:
    """Print the findings; 1 if there are any."""
    findings = [
        f"{path.relative_to(ROOT)}:{one.line}: {one.found} -> {one.better}"
        for path in (*pages(), *sources())
        for one in examine(path)
    ]
    sys.stdout.write("".join(f"{line}\n" for line in findings))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
