"""Links, files, decisions and names in README, CHANGELOG and docs/ are right."""

from __future__ import annotations

import re
from typing import Any

import pytest

from launcher.backends._base import Backend
from launcher.spec import _SET_BY_US
from tests.command import ROOT
from tests.pages import page, quoted, section, table

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def anchors(text: str) -> set[str]:
    """The anchors of all headings."""
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Any) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text("utf-8")):
        file, _, anchor = target.partition("#")
        there = path.parent / file if file else path
        if not target.startswith("http") and not (
            there.exists() and (not anchor or anchor in anchors(there.read_text("utf-8")))
        ):
            wrong.append(target)
    assert wrong == []


def test_the_changelog_has_the_usual_sections() -> None:
    """Those of https://keepachangelog.com, each once in a version, in this order."""
    order = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    for version in re.split(r"^## ", page("CHANGELOG.md"), flags=re.MULTILINE)[1:]:
        found = re.findall(r"^### (.*)$", version, re.MULTILINE)
        assert found
        assert found == [name for name in order if name in found]


def test_every_file_that_is_named_exists() -> None:
    """By its name, as most are named without their directories."""
    directories = ("launcher", "train", "tests", "benchmarks", "playbooks")
    there = {path.name for directory in directories for path in (ROOT / directory).rglob("*.py")}
    examples = {
        "hosts.ini",
        "train.py",
        "hello.py",
        "shard.py",
        "where.py",
        "read.py",
        "script.py",
        "x.py",
        "config.toml",
        "distlaunch.toml",
    }
    wrong = {
        (path.name, name)
        for path in PAGES
        if path.name not in {"CHANGELOG.md", "thirdparty.md"}  # the scripts in the latter are other people's
        for text in quoted(re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL))
        for name in re.findall(r"^[\w/.]*?(\w+\.py)\b", text)
        if name not in there | examples
    }
    assert wrong == set()


def test_every_decision_is_listed_with_its_title() -> None:
    """In order of their numbers, in the architecture and beside the records."""
    records = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    titles = [re.findall(r"\A# (.*)\n", path.read_text("utf-8"))[0] for path in records]

    assert len(records) >= 15
    assert [int(path.name[:4]) for path in records] == [*range(1, len(records) + 1)]
    assert [int(title.partition(".")[0]) for title in titles] == [*range(1, len(records) + 1)]
    for name, directory in (("docs/architecture.md", "decisions/"), ("docs/decisions/index.md", "")):
        listed = re.findall(r"^(\d+\. )\[(.*)\]\((.*)\)$", page(name), re.MULTILINE)
        assert [number + title for number, title, _ in listed] == titles
        assert [target for _, _, target in listed] == [directory + path.name for path in records]


def test_variables_that_only_distlaunch_sets_for_scripts_are_named() -> None:
    """docs/architecture.md says what a script can still notice."""
    ours = {name for name in _SET_BY_US if name.startswith("DISTLAUNCH_")}

    assert ours <= set(quoted(section("docs/architecture.md", "What a script can still notice")))


def test_the_methods_of_a_backend_are_listed() -> None:
    (row,) = (row for row in table(section("docs/architecture.md", "The nouns")) if row[0] == "`Backend`")
    named = {re.split(r"\W", word)[0] for word in quoted(row[1])}

    assert named <= set(dir(Backend))
    assert set(Backend.__abstractmethods__) <= named
