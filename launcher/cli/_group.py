"""`distlaunch COMMAND`: commands and backends are found by their files and imported when they are named."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from launcher import backends, cli, names
from launcher.cli._parameters import PlainCommand, PlainParameters
from launcher.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable


class UnknownCommandError(RequestError):
    """No command and no backend has that name."""

    code = "unknown_command"


def command_names() -> list[str]:
    """Commands that are no backends, each a file here with a function of its name; sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(cli.__path__) if not module.name.startswith("_"))


class CommandGroup(PlainParameters, TyperGroup):
    """Imports a command's file when it is named, so that `ls` does not pay for four backends."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's signature
        """Backends first."""
        return [*backends.names(), *command_names()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """The typer command of that name; None when there is none."""
        if cmd_name in command_names():
            module = importlib.import_module(f"launcher.cli.{cmd_name}")
            return _command(getattr(module, cmd_name), getattr(module, "CONTEXT_SETTINGS", {}))
        if cmd_name in backends.names():
            from launcher.cli._launch import SCRIPT_LAST, backend_command

            return _command(backend_command(cmd_name), SCRIPT_LAST)
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer does, but with our error for a name that is not known."""
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            raise _unknown(args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Two lists; a backend whose file is broken must not break the help."""
        for title, listed in (("Backends", backends.names()), ("Commands", command_names())):
            with formatter.section(title):
                formatter.write_dl([(name, self._summary(name)) for name in listed])

    def _summary(self, name: str) -> str:
        try:
            if name in backends.names():
                return backends.load(name).summary
            module = importlib.import_module(f"launcher.cli.{name}")
            return (getattr(module, name).__doc__ or "").partition("\n")[0]
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one file
            return f"(cannot be loaded: {error})"


def _command(function: Callable[..., Any], settings: dict[str, Any]) -> Any:
    """The function as a typer command."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(cls=PlainCommand, context_settings=settings)(function)
    return typer.main.get_command(app)


def _unknown(name: str, known: list[str]) -> UnknownCommandError:
    if name.endswith(".py"):
        hint = f"where is it to run? distlaunch local {name}; backends: {', '.join(backends.names())}"
    elif name in _clusters():
        hint = f"it is a cluster: distlaunch run --on {name}"
    else:
        hint = f"backends: {', '.join(backends.names())}; commands: {', '.join(command_names())}"
        if close := names.nearest(name, known):
            hint = f"did you mean {close}? {hint}"
    return UnknownCommandError(f"no command or backend {name!r}", hint=hint)


def _clusters() -> list[str]:
    from launcher import config

    try:
        return config.load().cluster_names()
    except RequestError:
        return []
