"""`scripts/prose`: words, sentences and lines of the documentation that an editor would change, as FILE:LINE: what -> better."""

from __future__ import annotations

import re
import sys
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

WIDTH = 120
"""Of a line that can be wrapped: code, tables and links are as long as they are."""


class Finding(NamedTuple):
    """One place, and what would be better there."""

    line: int
    found: str
    better: str


def rules() -> dict[str, Any]:
    """The words and the exceptions."""
    return tomllib.loads(RULES.read_text("utf-8"))


def pages(root: Path = ROOT) -> list[Path]:
    """What is looked at; CHANGELOG.md is a record of its time."""
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]


def prose(text: str) -> Iterator[tuple[int, str, str]]:
    """Lines outside of code blocks: number, as written, and without code, links' targets and quotations of programs."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line, re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+|<!--.*?-->", "`", line)


def wording(text: str, words: Mapping[str, str]) -> Iterator[Finding]:
    """Words that the field has another one for, and sentences that semicolons hold together."""
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
    """Lists that the site's Markdown takes for a part of the paragraph before them."""
    item, before, inside = re.compile(r"([-*]|\d+\.) "), "", False
    for number, line, _ in prose(text):
        if item.match(line):
            if before.strip() and not inside and not before.startswith("#"):
                yield Finding(number, "a list right after a paragraph", "an empty line between them")
            inside = True
        elif not line.strip():
            inside = False
        before = line


def examine(path: Path, edited: bool = True) -> list[Finding]:
    """All of a page, in order."""
    text = path.read_text("utf-8")
    found = list(lists(text))
    if edited:
        found += [*wording(text, rules()["words"]), *form(text)]
    return sorted(found)


def main() -> int:
    """Print what is found; 1 where there is something."""
    unedited = {ROOT / name for name in rules()["unedited"]["pages"]}
    told = [
        f"{path.relative_to(ROOT)}: no such page; take it out of scripts/words.toml" for path in unedited if not path.exists()
    ]
    for path in pages():
        name = path.relative_to(ROOT)
        told += [f"{name}:{one.line}: {one.found} -> {one.better}" for one in examine(path, path not in unedited)]
        if path in unedited and not examine(path):
            told.append(f"{name}: edited; take it out of scripts/words.toml")
    sys.stdout.write("".join(f"{line}\n" for line in told))
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
