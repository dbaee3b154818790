"""Which of the agent's modules each start imports: those that its steps import when they are imported themselves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_STEPS = (
    "__main__", "ahead", "contracts.env", "contracts.torchrun", "fabric.network_variables", "forkserver.hidden",
    "forkserver.server", "forkserver.standing", "group.exploring", "group.process", "node.agent", "node.run",
    "node.warm", "ssh.calls", "ssh.run", "ssh.stream", "stacks.dump", "store.client", "store.connection",
)  # fmt: skip
"""Modules that a start imports from within functions."""

_IMPORT = re.compile(r"^from (\.+)([\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
"""An import of the agent's own modules that is executed with its module, so its line is not indented."""


def modules(texts: Mapping[str, str], packages: frozenset[str]) -> set[str]:
    """The full names of the modules that a start imports.

    `texts`: all modules of the agent. `packages`: the names of those that are packages, the first one's included.
    """
    root = min(packages, key=len)
    left = [f"{root}.{name}" for name in _STEPS]
    found: set[str] = set()
    while left:
        name = left.pop()
        if name in found or name not in texts:
            continue
        found.add(name)
        left.append(name.rpartition(".")[0])
        left += _imported(name, texts[name], is_package=name in packages)
    return found


def _imported(name: str, text: str, *, is_package: bool) -> Iterator[str]:
    """Names that the module may import: some are no modules."""
    for dots, below, names in _IMPORT.findall(text):
        parts = name.split(".")
        origin = ".".join([*parts[: len(parts) + is_package - len(dots)], *filter(None, [below])])
        yield origin
        yield from (f"{origin}.{each}" for each in re.findall(r"\w+", names))
