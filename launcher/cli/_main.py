"""Parses the command line, runs the command, and turns whatever is raised into an exit code."""

from __future__ import annotations

import io
import os
import traceback
from contextlib import redirect_stdout
from itertools import zip_longest
from typing import Any

import typer

import launcher
from launcher import names, output
from launcher.agent import processes
from launcher.cli._group import CommandGroup, command_names
from launcher.errors import LaunchError, RequestError

_BUG_EXIT_CODE = 4
_SERVER = "--dry-run=server"

app = typer.Typer(
    name="distlaunch",
    cls=CommandGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


class UsageError(RequestError):
    """The command line cannot be read."""

    code = "usage"


def _print_version(wanted: bool) -> None:
    if wanted:
        output.result({"version": launcher.__version__}, f"distlaunch {launcher.__version__}")
        raise typer.Exit


@app.callback()
def distlaunch(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_print_version, is_eager=True),
) -> None:
    """Start distributed PyTorch scripts anywhere: the same script, flags, log and result on every cluster.

    Options before SCRIPT are distlaunch's, everything after it belongs to the script.
    """


def run(args: list[str]) -> int:
    """Run the command that `args` names; every failure becomes an exit code and an explanation on stderr."""
    processes.open_standard_streams()
    try:
        _choose_output(args)
        result = _invoke_spread(args)
    except Exception as error:  # noqa: BLE001 - the one place that explains them all
        return explain(error)
    return result if isinstance(result, int) else 0


def explain(error: Exception) -> int:
    """Say what went wrong, and return the exit code for it."""
    code = 0
    if isinstance(error, typer.Exit):
        code = error.exit_code
    elif isinstance(error, typer.TyperException):
        error = _usage_error(error)
    if isinstance(error, LaunchError):
        output.error(error)
        code = error.exit_code
    elif not isinstance(error, (typer.Exit, output.StdoutClosedError)):
        output.bug("".join(traceback.format_exception(error)))
        code = _BUG_EXIT_CODE
    return code


def _invoke_spread(args: list[str]) -> Any:
    """Run the command. `--dry-run=server`, as kubectl has it, stands for two flags, as a flag of ours has no value."""
    try:
        return _invoke(args)
    except typer.TyperException as error:
        if _SERVER not in args or "does not take a value" not in error.format_message():
            raise
    where = args.index(_SERVER)  # the first: the script's own arguments are not looked at
    return _invoke([*args[:where], "--dry-run", "--server-dry-run", *args[where + 1 :]])


def _invoke(args: list[str]) -> Any:
    group = typer.main.get_command(app)
    if "_DISTLAUNCH_COMPLETE" in os.environ:
        with redirect_stdout(io.StringIO()) as said:
            try:
                return group.main(args, prog_name="distlaunch")
            finally:
                output.text(said.getvalue())
    with group.make_context("distlaunch", args or ["--help"]) as context:
        return group.invoke(context)


def _choose_output(args: list[str]) -> None:
    """Know how to print before the command line is parsed, for errors in parsing it."""
    command = next((arg for arg in args if not arg.startswith("-")), "")
    output.setup(command=command, fmt="json" if os.environ.get("DISTLAUNCH_OUTPUT") == "json" else None)
    # What follows SCRIPT is not ours: a word that is no option and comes after another one that is none ends our part.
    ours = args if command in command_names() else args[: _end_of_ours(args)]
    for arg, after in zip_longest(ours, ours[1:], fillvalue=""):
        name, _, value = arg.partition("=")
        if name == "--output" and (value or after) in output.FORMATS:
            output.setup(fmt=value or after)


def _end_of_ours(args: list[str]) -> int:
    for index in range(2, len(args)):
        if not args[index].startswith("-") and ("=" in args[index - 1] or not args[index - 1].startswith("-")):
            return index
    return len(args)


def _usage_error(error: typer.TyperException) -> UsageError:
    """typer's error in our form."""
    context = getattr(error, "ctx", None)
    hint = f"see {context.command_path} --help" if context is not None else None
    text = error.format_message().rstrip(".")
    if close := names.nearest(str(getattr(error, "option_name", "")), getattr(error, "possibilities", None) or ()):
        text, hint = text.partition(" (")[0], f"did you mean {close}? {hint or ''}".rstrip()
    return UsageError(text[:1].lower() + text[1:], hint=hint)
