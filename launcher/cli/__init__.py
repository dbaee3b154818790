"""The command line: one file per command; the only place that knows typer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; the entry point of `distlaunch`."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:1] == ["torchrun"]:  # which has a parser of its own, and is to start as fast as it can
            return _torchrun(words[1:])
        # Imported here: Ctrl-C in that time is to be as quiet as at any other.
        from launcher.cli import app

        return app.run(words)
    except KeyboardInterrupt:
        return 130


def _torchrun(words: Sequence[str]) -> int:
    """One node of a run; but for a command line that cannot be read, whatever goes wrong is 1, as torchrun's."""
    from launcher.torchrun import command, options

    try:
        return command.main(words)
    except Exception as error:  # noqa: BLE001 - explained where all are
        from launcher.cli import app

        code = app.explain(error)
        return code if isinstance(error, options.TorchrunUsageError) else 1
