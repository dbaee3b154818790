"""Reads a valid command line in a millisecond. Anything else is left to typer, which explains what is wrong.

tests/cli/test_parser.py verifies that typer, with click in it, reads the same words alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.cli.parameters import Parameter

HELP_FLAGS = ("-h", "--help")


class HelpWantedError(Exception):
    """The help was requested."""


class _UnclearError(Exception):
    """The command line is left to typer."""


def parse(parameters: Sequence[Parameter], args: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The value of each parameter; None for a command line that typer has to read. Raises `HelpWantedError`."""
    reader = _Reader(parameters, settings)
    try:
        reader.read(list(args))
        if reader.help_wanted:
            raise HelpWantedError
        return reader.values()
    except _UnclearError:
        return None


class _Reader:
    """Reads one command line."""

    def __init__(self, parameters: Sequence[Parameter], settings: Mapping[str, Any]) -> None:
        self.help_wanted = False
        self._parameters = parameters
        self._options = {flag: item for item in parameters for flag in item.flags if not item.declared.is_argument}
        self._offs = {item.off: item for item in parameters if item.off}
        self._help_flags = settings.get("help_option_names", HELP_FLAGS)
        self._ends_at_word = not settings.get("allow_interspersed_args", True)
        self._normal = settings.get("token_normalize_func") or (lambda name: name)
        self._given: dict[str, Any] = {}
        self._words: list[str] = []

    def read(self, args: list[str]) -> None:
        """Sort the arguments into options and words."""
        args.reverse()
        while args:
            arg = args.pop()
            if arg == "--":
                self._words += reversed(args)
                return
            if arg.startswith("--"):
                self._long(arg, args)
            elif arg[:1] == "-" and len(arg) > 1:
                self._short(arg, args)
            elif self._ends_at_word:
                self._words += [arg, *reversed(args)]
                return
            else:
                self._words.append(arg)

    def _long(self, arg: str, rest: list[str]) -> None:
        name, is_given, value = arg.partition("=")
        self._option(self._normal(name), rest, value if is_given else None)

    def _short(self, arg: str, rest: list[str]) -> None:
        """`-d`, `-dv`, `-n 3` or `-n3`."""
        for index, char in enumerate(arg[1:], 2):
            name = self._normal(f"-{char}")
            item = self._options.get(name)
            if item is not None and item.kind is not bool:
                self._option(name, rest, arg[index:] or None)
                return
            self._option(name, rest, None)

    def _option(self, name: str, rest: list[str], value: str | None) -> None:
        """Read one option; `value` was written together with it."""
        item = self._options.get(name) or self._offs.get(name)
        if item is None and name in self._help_flags and value is None:
            self.help_wanted = True
        elif item is None or (item.kind is bool and value is not None):
            raise _UnclearError
        elif item.kind is bool:
            self._given[item.name] = name not in self._offs
        elif value is None and not rest:
            raise _UnclearError
        else:
            text = _value(item, rest.pop() if value is None else value)
            if item.several:
                self._given.setdefault(item.name, []).append(text)
            else:
                self._given[item.name] = text

    def values(self) -> dict[str, Any]:
        """The values of all parameters, with the words in their places."""
        words, values = self._words, {}
        for item in self._parameters:
            if not item.declared.is_argument:
                given = self._given.get(item.name, item.default)
            elif item.several:
                given, words = words or item.default, []
            else:
                given, words = (_value(item, words[0]) if words else item.default), words[1:]
            if given is None and item.required:
                raise _UnclearError
            values[item.name] = given
        if words:
            raise _UnclearError
        return values


def _value(item: Parameter, text: str) -> Any:
    """The text as the parameter's type. Empty text is an error, which typer reports."""
    if not text:
        raise _UnclearError
    try:
        return text if item.kind is str else item.kind(text)
    except ValueError:
        raise _UnclearError from None
