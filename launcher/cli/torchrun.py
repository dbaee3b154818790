"""`distlaunch torchrun`, found by the command line where other options stand before it."""

from __future__ import annotations

from typing import Annotated

import typer

CONTEXT_SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}


def torchrun(words: Annotated[list[str] | None, typer.Argument(metavar="[TORCHRUN'S OPTIONS] SCRIPT [ARGS]")] = None) -> int:
    """Run a script as torchrun does, on this node: with torchrun's own options, started once per node by anybody."""
    from launcher.torchrun import command

    return command.main(words or [])
