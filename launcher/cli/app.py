"""Reads the command line, runs the command, and turns exceptions into exit codes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.cli import group, parser
from launcher.errors import LaunchError
from launcher.system import garbage, streams

if TYPE_CHECKING:
    from launcher.cli.group import Command

_BUG_EXIT_CODE = 4
_SERVER = "--dry-run=server"
_COMPLETE_VARIABLE = "_DISTLAUNCH_COMPLETE"


def run(args: list[str]) -> int:
    """Run the command that `args` names. Every failure becomes an exit code and an explanation on stderr."""
    streams.open_standard_streams()
    try:
        _choose_output(args)
        result = _invoke(args)
    except KeyboardInterrupt:
        output.failed_result("interrupted", "the command was interrupted", None, if_none=True)
        raise
    except Exception as error:  # noqa: BLE001 - the one place that explains them all
        return explain(error)
    return result if isinstance(result, int) else 0


def explain(error: Exception) -> int:
    """Print what went wrong, and return the exit code for it."""
    if isinstance(error, LaunchError):
        output.error(error)
        return error.exit_code
    if isinstance(error, output.StdoutClosedError):
        return 0
    import traceback

    output.bug("".join(traceback.format_exception(error)))
    return _BUG_EXIT_CODE


def call(command: Command, args: list[str]) -> Any:
    """Run the command with these words. `--dry-run=server`, as in kubectl, means two flags: flags have no values."""
    if command.takes_all:
        return command.function(args)
    try:
        values = _parse(command, args)
    except parser.HelpWantedError:
        from launcher.cli import help_text

        help_text.show(command)
        return 0
    if values is None:
        from launcher.cli import completion

        return completion.call(command, args)
    return command.function(**values)


def _parse(command: Command, args: list[str]) -> dict[str, Any] | None:
    values = parser.parse(command.parameters, args, command.settings)
    if values is None and _SERVER in args:
        where = args.index(_SERVER)  # the first: not one of the script's own arguments
        spread = [*args[:where], "--dry-run", "--server-dry-run", *args[where + 1 :]]
        return parser.parse(command.parameters, spread, command.settings)
    return values


def _invoke(args: list[str]) -> Any:
    if _COMPLETE_VARIABLE not in os.environ:
        if not args or args in (["-h"], ["--help"]):
            from launcher.cli import help_text

            help_text.show_all()
            return 0
        if args == ["--version"]:
            from launcher.cli import help_text

            help_text.print_version()
            return 0
        if not args[0].startswith("-"):
            if command := group.command(args[0], args[1:]):
                garbage.as_usual()
                return call(command, args[1:])
            raise group.unknown(args[0])
    from launcher.cli import completion  # imports typer

    return completion.main(args)


def _choose_output(args: list[str]) -> None:
    """Set up output before the command line is parsed, for errors in parsing it."""
    command = next((arg for arg in args if not arg.startswith("-")), "")
    output.setup(
        command=command, fmt=fmt if (fmt := os.environ.get("DISTLAUNCH_OUTPUT")) in ("json", "jsonl") else None
    )
    # What follows SCRIPT is not ours: our part ends at a non-option that cannot be the value of an option.
    ours = args[: _end_of_ours(args)] if command == "run" or command not in group.command_names() else args
    for arg, after in zip(ours, [*ours[1:], ""], strict=False):
        name, _, value = arg.partition("=")
        if name == "--output" and (value or after) in output.FORMATS:
            output.setup(fmt=value or after)


def _end_of_ours(args: list[str]) -> int:
    for index in range(1, len(args)):
        if args[index] == "--":
            return index
        if not args[index].startswith("-") and ("=" in args[index - 1] or not args[index - 1].startswith("-")):
            return index
    return len(args)
