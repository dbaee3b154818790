"""`distlaunch COMMAND`: commands and backends are found by their files, and imported on use."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from launcher import backends
from launcher.agent.named_tuple import NamedTuple
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
    """One command: its function, and how its words are read."""

    prog: str
    """Its name in help and errors: `distlaunch ls`."""

    function: Callable[..., Any]
    settings: Mapping[str, Any] = {}
    """click's context settings."""

    takes_all: bool = False
    """Whether the command reads all its words itself."""

    @property
    def parameters(self) -> list[parameters.Parameter]:
        """The command's parameters."""
        if self.takes_all:
            return [parameters.Parameter("words", str, True, False, None, parameters.argument(metavar="[WORDS]"))]
        return parameters.of(self.function)


def command_names() -> list[str]:
    """Commands that are not backends, sorted; each is a file in `commands` with a function of the same name."""
    return sorted(
        name.removesuffix(".py") for name in os.listdir(_COMMANDS) if name.endswith(".py") and not name.startswith("_")
    )


def command(name: str, words: list[str] | None = None) -> Command | None:
    """The command of that name; None if there is none. `words`: those after it, if they are known."""
    if name in command_names():
        module = importlib.import_module(f"launcher.cli.commands.{name}")
        settings, takes_all = getattr(module, "CONTEXT_SETTINGS", {}), getattr(module, "TAKES_ALL", False)
        function = module.for_words(words) if words and hasattr(module, "for_words") else getattr(module, name)
        return Command(f"distlaunch {name}", function, settings, takes_all)
    if name in backends.names():
        from launcher.cli.launch import SCRIPT_LAST, backend_command

        return Command(f"distlaunch {name}", backend_command(name), SCRIPT_LAST)
    return None


def listed() -> list[tuple[str, list[tuple[str, str]]]]:
    """All names with a line of text each, for the help, which a broken backend file does not break."""
    return [
        ("Backends", [(name, backends.summary(name)) for name in backends.names()]),
        ("Commands", [(name, _summary(name)) for name in command_names()]),
    ]


def _summary(name: str) -> str:
    """First line of the function's docstring, from the bytecode; of the module's, if a call makes the function."""
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
    """The error for an unknown name."""
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
