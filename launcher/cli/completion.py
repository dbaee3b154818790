"""The same commands as typer commands, for shell completion and to explain errors in a command line.

Imported only for these, as importing typer takes 50 ms.
"""

from __future__ import annotations

import inspect
import io
import os
import types
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from typer.core import TyperCommand, TyperGroup

from launcher import backends, output
from launcher.cli import group, help_text
from launcher.cli.usage import UsageError
from launcher.errors import RequestError
from launcher.system import names

if TYPE_CHECKING:
    from launcher.cli.group import Command
    from launcher.cli.parameters import Parameter

COMPLETE_VARIABLE = "_DISTLAUNCH_COMPLETE"
_TAKES_ALL = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}


def main(args: list[str]) -> Any:
    """Run the whole command line."""
    app = typer.Typer(
        name="distlaunch",
        cls=_Group,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_distlaunch)
    commands = typer.main.get_command(app)
    if COMPLETE_VARIABLE in os.environ:
        with redirect_stdout(io.StringIO()) as said:
            try:
                return commands.main(args, prog_name="distlaunch")
            finally:
                output.text(said.getvalue())
    return _run(commands, "distlaunch", args)


def call(command: Command, args: list[str]) -> Any:
    """Run one command."""
    return _run(_made(command), command.prog, args)


def _run(made: Any, prog: str, args: list[str]) -> Any:
    try:
        with made.make_context(prog, args) as context:
            return made.invoke(context)
    except typer.Exit as error:
        return error.exit_code
    except typer.TyperException as error:
        raise _usage_error(error) from None


def _distlaunch(
    version: bool = typer.Option(False, "--version", help="Print the version."),
) -> None:
    if version:
        help_text.print_version()
        raise typer.Exit


class _Value:
    """Converts text to our few plain types. Replaces typer's own conversion, which imports pydantic in 70 ms."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the parameter's type; raises `typer.BadParameter`."""
        several = param.multiple or param.nargs == -1
        kind = param.type_descriptor.annotation
        if value is None:
            return () if several else None
        if param.nargs != -1 and "" in (value if several else (value,)):  # ARGS belong to the script
            raise _empty(param)
        if several or kind not in (int, float):
            return value
        try:
            return kind(value)
        except ValueError:
            wanted = "whole number" if kind is int else "number"
            raise typer.BadParameter(f"{value!r} is not a {wanted}", ctx=ctx, param=param) from None


def _empty(param: Any) -> RequestError:
    """The error for an empty value, which most often comes from an unset shell variable."""
    given = next((flag for flag in param.opts if flag.startswith("--")), param.metavar)
    nothing = "names no directory" if param.metavar == "DIR" else "is empty"
    return RequestError(
        f"{given} '' {nothing}", hint="is a shell variable not set? to give no value, leave the option out"
    )


class _Values:
    """Base of our typer commands: `_Value` converts their parameters."""

    def get_params(self, ctx: Any) -> Any:
        """typer's parameters. A typer with other names for what `_Value` replaces uses its own, slower conversion."""
        found = super().get_params(ctx)  # type: ignore[misc]
        for each in found:
            if hasattr(each, "get_runtime_param") and hasattr(getattr(each, "type_descriptor", None), "annotation"):
                each.get_runtime_param = _Value
        return found

    def get_help_option(self, ctx: Any) -> Any:
        """typer's option, with our own help."""
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.callback = _show_help
        return option


def _show_help(ctx: Any, _param: Any, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        command: Command | None = getattr(ctx.command, "declared", None)
        help_text.show(command._replace(prog=ctx.command_path)) if command else help_text.show_all()
        ctx.exit()


class _Command(_Values, TyperCommand):
    """One command."""


class _Group(_Values, TyperGroup):
    """All commands."""

    _words: list[str] | None = None
    """Those after the command."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's signature
        """Backends first."""
        return [*backends.names(), *group.command_names()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """The typer command of that name; None if there is none."""
        try:
            found = group.command(cmd_name, self._words)
        except RequestError:  # the words are not complete yet
            found = group.command(cmd_name)
        return _made(found) if found else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve as typer does, but with our error for an unknown name."""
        self._words = args[1:]
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            raise group.unknown(args[0])
        return super().resolve_command(ctx, args)


def _made(command: Command) -> Any:
    """The typer command with the parameters that our command declares."""

    def run(**values: Any) -> Any:
        return command.function(values["words"] or []) if command.takes_all else command.function(**values)

    items = [_parameter(item) for item in command.parameters]
    run.__signature__ = inspect.Signature(items)  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in items}
    run.__doc__ = command.function.__doc__
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    settings = {"help_option_names": ["-h", "--help"], **command.settings, **(_TAKES_ALL if command.takes_all else {})}
    app.command(cls=_Command, context_settings=settings)(run)
    made = typer.main.get_command(app)
    made.declared = command  # type: ignore[attr-defined]
    return made


def _parameter(item: Parameter) -> inspect.Parameter:
    about, kind = item.declared, types.GenericAlias(list, item.kind) if item.several else item.kind
    more: dict[str, Any] = {"metavar": None if item.kind is bool else about.metavar, "help": about.help}
    if about.is_argument:
        info = typer.Argument(autocompletion=about.complete, **more)
    else:
        info = typer.Option(*about.flags, *about.aliases, hidden=about.hidden, **more)
    annotation: Any = Annotated[kind if item.required else Optional[kind], info]
    default = inspect.Parameter.empty if item.required else item.default
    return inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _usage_error(error: typer.TyperException) -> UsageError:
    """typer's error as a LaunchError."""
    context = getattr(error, "ctx", None)
    hint = f"see {context.command_path} --help" if context is not None else None
    text = error.format_message().rstrip(".")
    if close := names.nearest(str(getattr(error, "option_name", "")), getattr(error, "possibilities", None) or ()):
        text, hint = text.partition(" (")[0], f"did you mean {close}? {hint or ''}".rstrip()
    return UsageError(text[:1].lower() + text[1:], hint=hint)
