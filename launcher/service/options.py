"""Options as a Python program passes them (numbers, mappings, durations), converted to those of the command line."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any

from launcher import backends
from launcher.errors import SpecError
from launcher.service.launch_options import LaunchOptions
from launcher.service.request import are_several, named
from launcher.settings import config
from launcher.settings.options import JobOptions
from launcher.system import names
from launcher.system.dataclass import fields

_FOR_ALL = {"module": bool, "unique": bool, "if_running": str, "roles": str}
_OF_A_TERMINAL = tuple(item.name for item in fields(LaunchOptions) if item.name not in _FOR_ALL)
_OF_A_TERMINAL += ("fetch", "fetch_node", "log_ranks", "output")
_FETCHING = "Run.fetch does it at any time; on Kubernetes before the pods end: volume= and output_dir= keep files there"
_INSTEAD = {
    **dict.fromkeys(("fetch", "fetch_node", "fetch_to"), _FETCHING),
    "dry_run": "plan() starts nothing, and Plan.render() returns the texts",
    "render_to": "Plan.write() does it",
    "detach": "submit() returns at once, as with it",
    "log_ranks": "Run.logs() returns the lines",
}


def values(given: Mapping[str, Any], backend: str | None, cluster: str | None) -> dict[str, Any]:
    """The options with the values that the command line would give. Raises `SpecError` for invalid ones."""
    types = {**config.field_types(JobOptions), **_FOR_ALL, "runs_dir": str}
    own = _options(backend, cluster)
    for each in own:
        types |= config.field_types(each)
    durations = _durations((JobOptions, *own))
    types |= {"start": str, "race": int} if are_several(cluster) else {}
    for name in _OF_A_TERMINAL:
        types.pop(name, None)
    return converted(given, types, durations)


def converted(given: Mapping[str, Any], types: Mapping[str, type], durations: Collection[str]) -> dict[str, Any]:
    """The options, which have these types, with the values that the command line would give."""
    for name in given:
        if name not in types:
            why = "; it is for the command line" if name in _OF_A_TERMINAL else ""
            hint = _INSTEAD.get(name) or names.hint(name, sorted(types))
            raise SpecError(f"unknown option {name!r}{why}", hint=hint)
    some = {name: value for name, value in given.items() if value is not None}
    return {
        name: _duration(value) if name in durations and _is_duration(value) else _value(name, value, types[name])
        for name, value in some.items()
    }


def _options(backend: str | None, cluster: str | None) -> list[type]:
    if cluster is None:
        return [backends.load(backend or "local").options]
    return [backends.load(each.backend).options for each in named(cluster, config.load())]


def _durations(classes: Iterable[type]) -> set[str]:
    every = [item for each in classes for item in fields(each)]
    return {item.name for item in every if str(item.metadata.get("metavar")).startswith("DURATION")}


def _value(name: str, value: Any, kind: type) -> Any:
    """The value, converted to its option's type."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    number = _is_number(value)
    if kind is tuple:
        return _several(name, value)
    if name == "nodes" and isinstance(value, tuple) and len(value) == 2:
        return f"{value[0]}:{value[1]}"
    if kind is str and number:
        return str(value)
    if kind is float and number:
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise SpecError(f"{name.replace('_', '-')} wants {_WANTS[kind]}, not {value!r}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_duration(value: Any) -> bool:
    return _is_number(value) or isinstance(value, timedelta)


def _duration(value: float | timedelta) -> str:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"


def _several(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        return tuple(f"{key}={part}" for key, part in value.items())
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Iterable):
        return tuple(str(part) for part in value)
    raise SpecError(f"{name.replace('_', '-')} wants texts, not {value!r}")


_WANTS = {str: "a text", int: "a whole number", float: "a number", bool: "True or False"}
