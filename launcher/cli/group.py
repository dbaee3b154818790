"""`distlaunch COMMAND`: commands and backends are found by their files and imported when they are named."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher import backends
from launcher.cli import parameters
from launcher.errors import RequestError
from launcher.system import names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_COMMANDS = os.path.join(os.path.dirname(__file__), "commands")


class UnknownCommandError(RequestError):
    """No command and no backend has that name."""

    code = "unknown_command"


class Command(NamedTuple):
    """One command: the function behind it, and how its words are read."""

    prog: str
    """As its help and errors call it: `distlaunch ls`."""

    function: Callable[..., Any]
    settings: Mapping[str, Any] = {}
    """click's context settings."""

    takes_all: bool = False
    """All words are its own, which reads them itself."""

    @property
    def parameters(self) -> list[parameters.Parameter]:
        """What it takes."""
        if self.takes_all:
            return [parameters.Parameter("words", str, True, False, None, parameters.argument(metavar="[WORDS]"))]
        return parameters.of(self.function)


def command_names() -> list[str]:
    """Commands that are no backends, each a file of `commands` with a function of its name; sorted."""
    return sorted(name.removesuffix(".py") for name in os.listdir(_COMMANDS) if name.endswith(".py") and not name.startswith("_"))


def command(name: str) -> Command | None:
    """The command of that name; None when there is none."""
    if name in command_names():
        module = importlib.import_module(f"launcher.cli.commands.{name}")
        settings, takes_all = getattr(module, "CONTEXT_SETTINGS", {}), getattr(module, "TAKES_ALL", False)
        return Command(f"distlaunch {name}", getattr(module, name), settings, takes_all)
    if name in backends.names():
        from launcher.cli.launch import SCRIPT_LAST, backend_command

        return Command(f"distlaunch {name}", backend_command(name), SCRIPT_LAST)
    return None


def listed() -> list[tuple[str, list[tuple[str, str]]]]:
    """All names with a line of text each, for the help; a backend whose file is broken does not break it."""
    return [
        ("Backends", [(name, backends.summary(name)) for name in backends.names()]),
        ("Commands", [(name, _summary(name)) for name in command_names()]),
    ]


def _summary(name: str) -> str:
    """The first line of its function's docstring, out of the byte-code; of its module's, where a call makes the function."""
    from importlib.machinery import SourceFileLoader

    full = f"launcher.cli.commands.{name}"
    try:
        code: Any = SourceFileLoader(full, os.path.join(_COMMANDS, f"{name}.py")).get_code(full)
    except (OSError, SyntaxError) as error:
        return f"(cannot be loaded: {error})"
    own = [part for part in code.co_consts if getattr(part, "co_name", "") == name]
    text = (own[0] if own else code).co_consts[0]
    return text.partition("\n")[0] if isinstance(text, str) else ""


def unknown(name: str) -> UnknownCommandError:
    """The error of a name that is none of ours."""
    if name.endswith(".py"):
        hint = f"where should it run? distlaunch local {name}; backends: {', '.join(backends.names())}"
    elif name in _clusters():
        hint = f"it is a cluster: distlaunch run --on {name}"
    else:
        hint = f"backends: {', '.join(backends.names())}; commands: {', '.join(command_names())}"
        if close := names.nearest(name, [*backends.names(), *command_names()]):
            hint = f"did you mean {close}? {hint}"
    return UnknownCommandError(f"no command or backend {name!r}", hint=hint)


def _clusters() -> list[str]:
    from launcher.settings import config

    try:
        return config.load().cluster_names()
    except RequestError:
        return []
