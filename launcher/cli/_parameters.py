"""Command-line parameters made from options dataclasses, and those that several commands share."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from typer.core import TyperCommand

from launcher import config, output, runs
from launcher.errors import LaunchError, RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

OutputOption = Annotated[
    Optional[str], typer.Option("--output", metavar="human|json", help="How the result is printed.", show_default=False)
]


def complete_run(incomplete: str) -> list[str]:
    """Run ids for the shell's completion, newest first; reads no run."""
    try:
        folder = runs.root(config.load().resolve(config.GlobalOptions)["runs_dir"].value)
        return [name for name in reversed(runs.ids(folder)) if name.startswith(incomplete)]
    except LaunchError:
        return []


RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Id as `distlaunch ls` prints it, a unique part of one, or `last`.", autocompletion=complete_run
    ),
]


class PlainValue:
    """Turns texts into our few plain types, in place of typer's own way, which imports pydantic for it: 70 ms."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the parameter's type; raises `typer.BadParameter`."""
        several = param.multiple or param.nargs == -1
        kind = param.type_descriptor.annotation
        if value is None:
            return () if several else None
        if param.nargs != -1 and "" in (value if several else (value,)):  # ARGS are the script's own
            raise _empty(param)
        if several or kind not in (int, float):
            return value
        try:
            return kind(value)
        except ValueError:
            wanted = "whole number" if kind is int else "number"
            raise typer.BadParameter(f"{value!r} is no {wanted}", ctx=ctx, param=param) from None


def _empty(param: Any) -> RequestError:
    """The error of a value that is empty, which most often is that of a shell variable that is not set."""
    given = next((flag for flag in param.opts if flag.startswith("--")), param.metavar)
    nothing = "names no folder" if param.metavar == "DIR" else "is empty"
    return RequestError(f"{given} '' {nothing}", hint="is a variable of the shell not set? without a value, leave it out")


class PlainParameters:
    """Base of our typer commands: their parameters are read by `PlainValue`."""

    def get_params(self, ctx: Any) -> Any:
        """typer's parameters; no more than slower where typer knows nothing of the attribute set here."""
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            parameter.get_runtime_param = PlainValue
        return parameters

    def get_help_option(self, ctx: Any) -> Any:
        """typer's option, with the help printed as all else is: a stdout that cannot be written is one error."""
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.callback = _show_help
        return option


def _show_help(ctx: Any, _param: Any, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        output.text(ctx.get_help() + "\n")
        ctx.exit()


class PlainCommand(PlainParameters, TyperCommand):
    """One command."""


def from_fields(cls: type, *, leave_out: tuple[str, ...] = ()) -> list[inspect.Parameter]:
    """One keyword parameter per field of an options dataclass; None stands for "not given"."""
    types = config.field_types(cls)
    return [
        keyword(item.name, _annotation(item.name, types[item.name], item.default, item.metadata), None)
        for item in fields(cls)
        if item.name not in leave_out
    ]


def keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """A parameter that typer passes by name."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _annotation(name: str, kind: type, default: Any, meta: Mapping[str, Any]) -> Any:
    dashed = name.replace("_", "-")
    flags = meta["flags"] or (f"--{dashed}",)
    if kind is bool and not meta["flags"] and not dashed.startswith("no-"):
        flags = (f"--{dashed}/--no-{dashed}",)
    text = meta["help"] + (f"  [default: {default}]" if default not in ("", (), False) else "")
    annotation: Any = list[str] if kind is tuple else kind
    option = typer.Option(*flags, help=text, metavar=None if kind is bool else meta["metavar"], show_default=False)
    return Annotated[Optional[annotation], option]
