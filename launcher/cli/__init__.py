"""The command line: one file per command. The only package that uses typer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from launcher import backends
from launcher.system import garbage

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; the entry point of `distlaunch`."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:1] == ["torchrun"]:  # has its own parser, and must start fast
            return _torchrun(words[1:])
        garbage.not_yet()
        with backends.begun(words):
            # Imported here, so that Ctrl-C during the import is quiet, too.
            from launcher.cli import app

            return app.run(words)
    except KeyboardInterrupt:
        return 130
    finally:
        if argv is None:
            garbage.never_again()
        else:
            garbage.as_usual()


def _torchrun(words: Sequence[str]) -> int:
    """Run one node. As in torchrun, every failure exits with 1, except for a command line that cannot be read."""
    from launcher.torchrun import command, options

    try:
        return command.main(words)
    except Exception as error:  # noqa: BLE001 - explained below
        from launcher.cli import app

        code = app.explain(error)
        return code if isinstance(error, options.TorchrunUsageError) else 1
