"""The command line: one file per command; the only place that knows typer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; the entry point of `distlaunch`."""
    try:
        # Imported here: typer alone takes 50 ms, and Ctrl-C in that time is to be as quiet as at any other.
        from launcher.cli import _main

        return _main.run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return 130
