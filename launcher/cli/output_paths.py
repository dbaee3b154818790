"""Say where a script's relative output paths lie, if not here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from launcher import output

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.service.launch import Launch

_PLACE = re.compile(
    r"--?([a-z]+[-_])*(out|output|outputs|result|results|save|checkpoint|checkpoints|ckpt|log|logs|logging)"
    r"[-_]?(dir|directory|folder|path|file)"
)
"""An option whose value is a path to write to, by its name."""

_PERHAPS = re.compile(r"--?(o|out|output|results|save|checkpoints?|ckpt)")
"""An option whose value may also be a word or a number."""

_WORDS = re.compile(r"[\d.e+-]+|true|false|yes|no|on|off|none|all|auto|best|last|json|text|csv|yaml|human|latest")


def warn(launch: Launch) -> None:
    """Say in one line where such paths lie, if hosts do not see this directory."""
    where = launch.request.backend.relative_to(launch.plan)
    found = list(_relative(launch.request.job.command[1:])) if where else []
    if found:
        lies = "is a relative path and lies" if len(found) == 1 else "are relative paths and lie"
        output.warn(f"{', '.join(found)} {lies} {where}, not here")


def _relative(args: Sequence[str]) -> Iterator[str]:
    """The options with relative paths to write to, as they were given."""
    for number, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        follows = args[number + 1] if number + 1 < len(args) else ""
        value = value if equals else follows
        lower = name.lower()
        if not _PLACE.fullmatch(lower) and not (_PERHAPS.fullmatch(lower) and not _WORDS.fullmatch(value.lower())):
            continue
        if value and not value.startswith(("/", "~", "-", "$")) and "://" not in value:
            yield arg if equals else f"{name} {value}"
