"""One settings file: its values, and the line of each key."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

from launcher.errors import ConfigError
from launcher.system import trust
from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WORD = r"""(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)"""
_PATH = rf"\s*({_WORD}(?:\s*\.\s*{_WORD})*)\s*"
_HEADER = re.compile(rf"\s*\[\[?{_PATH}\]\]?\s*(?:#.*)?\Z")
_KEY = re.compile(rf"{_PATH}=")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A TOML file that was read."""

    path: str
    values: Mapping[str, Any]
    lines: tuple[str, ...]

    @property
    def directory(self) -> str:
        """Where it is: its paths are relative to that."""
        return os.path.dirname(os.path.abspath(self.path))

    def table(self, name: str) -> dict[str, Any]:
        """A section of the file; empty if it is missing."""
        value = self.values.get(name, {})
        if not isinstance(value, dict):
            raise ConfigError(f"{self.where(name)}: {name} is a section, not a value", hint=f"write [{name}]")
        return value

    def tables(self, name: str) -> dict[str, dict[str, Any]]:
        """The sections inside a section, such as `[clusters.NAME]`."""
        for key, value in (found := self.table(name)).items():
            if not isinstance(value, dict):
                raise ConfigError(
                    f"{self.where(name, key)}: {key!r} in [{name}] is not a section", hint=f"write [{name}.NAME]"
                )
        return found

    def where(self, *path: str) -> str:
        """`path:line` of the key, or of what contains it if it has no line of its own."""
        current: tuple[str, ...] = ()
        found = best = 0
        for number, line in enumerate(self.lines, start=1):
            if header := _HEADER.match(line):
                current = place = _words(header[1])
            elif key := _KEY.match(line):
                place = (*current, *_words(key[1]))
            else:
                continue
            shared = next(
                (at for at, (ours, theirs) in enumerate(zip(place, path, strict=False)) if ours != theirs),
                min(len(place), len(path)),
            )
            if shared > best and (shared == len(path) or shared == len(place)):
                found, best = number, shared
        return f"{self.path}:{found}" if found else self.path


def read_file(
    path: str, *, what: str = "settings file", more: str = "", trusted: Sequence[str] | None = None
) -> ConfigFile | None:
    """The file; None if there is none that this user can reach. `what`: its kind, for messages.

    `trusted`: the user's exceptions, as far as they are known; None: all.

    Raises `UntrustedError`, with `more` in its hint, if others could change it.
    """
    try:
        data = trust.read(what, path, more=more, words=trust.words() if trusted is None else trusted)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        # A home directory that cannot be searched has no settings; a file that exists but is unreadable is an error.
        if not os.path.exists(path):
            return None
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    try:
        text = data.decode()
        return ConfigFile(path, _parse(text), tuple(text.splitlines()))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8") from None
    except ValueError as error:
        raise ConfigError(_syntax_error(path, str(error), text)) from None
    except RecursionError:
        raise ConfigError(f"{path}: brackets are nested too deep") from None


def project_file(name: str, cwd: str | None = None) -> str | None:
    """The nearest file of that name from the working directory upward."""
    try:
        directory = cwd or os.getcwd()
    except OSError:
        return None
    while not os.path.lexists(path := os.path.join(directory, name)):
        directory, child = os.path.dirname(directory), directory
        if directory == child:
            return None
    return path


def _words(path: str) -> tuple[str, ...]:
    """The parts of a key such as `clusters."a.b".nodes`."""
    return tuple(word.strip("\"'") for word in re.findall(_WORD, path))


def _parse(text: str) -> dict[str, Any]:
    # Imported here: most users have no settings file.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def _syntax_error(path: str, message: str, text: str) -> str:
    """`path:line: what` from tomllib's `what (at line 3, column 5)` or `what (at end of document)`."""
    match = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", message, re.DOTALL)
    if match is None:
        return f"{path}: {message}"
    return f"{path}:{match[2] or len(text.splitlines())}: broken TOML: {match[1]}"
