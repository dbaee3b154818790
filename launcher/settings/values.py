"""The value of a key or of a variable, as the type of its option."""

from __future__ import annotations

import os
from typing import Any, TypeVar

from launcher.errors import ConfigError

T = TypeVar("T")
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_WANTS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", tuple: "a list of texts"}


def from_toml(value: Any, kind: type, what: str) -> Any:
    """The value as the field's type. A number is accepted as text: `nodes = 4`."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is str and number:
        return str(value)
    if kind is float and number:
        return float(value)
    if kind is tuple and isinstance(value, list) and all(type(part) in (str, int, float) for part in value):
        return _passable(tuple(str(part) for part in value), what)
    if type(value) is not kind:
        raise ConfigError(f"{what} wants {_WANTS[kind]}, not {value!r}")
    return _passable(value, what)


def _passable(value: T, what: str) -> T:
    """The value, if its text can be an argument, variable or path of a process. Raises `ConfigError` otherwise."""
    text = "".join(value) if isinstance(value, tuple) else str(value)
    if "\0" in text:
        raise ConfigError(f"{what} contains a NUL character", hint="no program can be given one")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ConfigError(f"{what} contains text that is not valid Unicode") from None
    return value


def from_text(text: str, kind: type, what: str) -> Any:
    """The environment variable's text as the field's type. A list is comma-separated or a JSON array."""
    try:
        if kind is tuple:
            return _passable(_list(text), what)
        return _WORDS[text.strip().lower()] if kind is bool else kind(text)
    except (ValueError, KeyError, RecursionError):
        raise ConfigError(f"{what} wants {_WANTS[kind]}, not {text[:80]!r}") from None


def _list(text: str) -> tuple[str, ...]:
    """`a,b`, or `["a", "b,c"]` if a part contains a comma, as in NCCL_IB_HCA=mlx5_0,mlx5_1."""
    if text.lstrip().startswith("["):
        import json

        parts = json.loads(text)
        if not all(type(part) in (str, int, float) for part in parts):
            raise ValueError(text)
        return tuple(str(part) for part in parts)
    return tuple(part.strip() for part in text.split(",") if part.strip())
