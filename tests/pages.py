"""What README and docs/ state: sections, tables, names in backticks; and names in the program to compare with them."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from launcher import backends, errors
from launcher.settings import config
from launcher.settings.options import JobOptions
from tests.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def section(name: str, heading: str) -> str:
    """The text below a heading of a page, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", page(name), re.MULTILINE | re.DOTALL)
    assert found, f"{name} has no section {heading!r}"
    return found[1]


def table(text: str) -> list[list[str]]:
    """The cells of each row of a text's tables, without the heads."""
    rows = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip().replace("\\|", "|") for cell in row] for row in rows]
    heads = [index for index in range(len(cells) - 1) if is_rule(cells[index + 1])]
    return [row for index, row in enumerate(cells) if index not in heads and not is_rule(row)]


def is_rule(row: list[str]) -> bool:
    return all(re.fullmatch(r":?-+:?", cell) for cell in row)


def quoted(text: str) -> list[str]:
    """The texts between backticks."""
    return re.findall(r"`([^`]+)`", text)


def named(*classes: type, **wanted: Any) -> set[str]:
    """Names of the options that have these properties; for `path` any kind of path is true."""
    every = [item for cls in classes for item in fields(cls)]
    return {item.name for item in every if all(bool(item.metadata[key]) is value for key, value in wanted.items())}


def dashed(name: str) -> str:
    """The flag of an option, by the name of its field."""
    return "--" + name.replace("_", "-")


def every_option() -> list[type]:
    return [config.GlobalOptions, JobOptions, *(backends.load(name).options for name in backends.names())]


def with_a_page() -> set[str]:
    """Backends that have a reference page of their own, `docs/PACKAGE.md`: no list has to name these."""
    return {name for name in backends.names() if (ROOT / "docs" / f"{backends.ALIASES.get(name, name)}.md").exists()}


def tree(cls: type[errors.LaunchError]) -> Iterator[type[errors.LaunchError]]:
    """A class and all its subclasses."""
    yield cls
    for sub in cls.__subclasses__():
        yield from tree(sub)
