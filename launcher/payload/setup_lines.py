"""The user's shell lines that run before the agent, as sites need them: `module load`, `conda activate`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher.errors import SpecError
from launcher.payload import credentials
from launcher.system import trust

if TYPE_CHECKING:
    from collections.abc import Sequence

_FAILED = 'echo "distlaunch: setup failed with code $distlaunch_code: $BASH_COMMAND" >&2; exit "$distlaunch_code"'
_WATCHED = (
    "# A line that fails ends the job; a failure inside a function or a sourced file does not count.",
    'if [ -n "$BASH_VERSION" ]; then',
    f"""    trap 'distlaunch_code=$?; [ "${{#BASH_SOURCE[@]}}" -gt 1 ] || {{ {_FAILED}; }}' ERR""",
    "fi",
)
"""Ends the job on a failed setup line: it would continue without its setup."""

_UNWATCHED = ('if [ -n "$BASH_VERSION" ]; then trap - ERR; set +o pipefail; fi', "set +eu")
"""What follows looks at exit codes itself: options of a setup file, such as `set -euo pipefail`, end here."""


def watched(setup: Sequence[str], *, ship_secrets: bool) -> list[str]:
    """The lines, of which a failed one ends the script; none if there are none. Refuses credentials in them."""
    lines = _lines(setup)
    if not ship_secrets:
        credentials.check_lines("setup", lines)
    return [*_WATCHED, *lines, *_UNWATCHED] if lines else []


def _lines(setup: Sequence[str]) -> list[str]:
    """The setup lines, with the lines of a file in place of `@FILE`."""
    lines: list[str] = []
    for line in setup:
        if line.startswith("@"):
            try:
                lines += trust.read_text("setup", os.path.expanduser(line[1:])).splitlines()
            except OSError as error:
                raise SpecError(f"setup {line!r} cannot be read: {error.strerror}") from error
        else:
            lines.append(line)
    return lines
