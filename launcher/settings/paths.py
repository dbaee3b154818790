"""Paths in a settings file are relative to that file, wherever the command runs."""

from __future__ import annotations

import os
from typing import Any

from launcher.system.dataclass import fields


def anchored(values: dict[str, Any], directory: str, *classes: type) -> dict[str, Any]:
    """The values with paths made absolute. The options' `path` says which values are paths, and in what form."""
    kinds = {item.name: item.metadata["path"] for cls in classes for item in fields(cls) if item.metadata["path"]}
    return {key: _whole(value, kinds[key], directory) if key in kinds else value for key, value in values.items()}


def _whole(value: Any, kind: str, directory: str) -> Any:
    if isinstance(value, tuple):
        return tuple(_whole(part, kind, directory) for part in value)
    if kind == "list":
        return os.pathsep.join(_joined(part, directory) for part in value.split(os.pathsep) if part)
    if kind == "at":
        return "@" + _joined(value[1:], directory) if value.startswith("@") else value
    if kind == "dots":
        return _joined(value, directory) if value.startswith(("./", "../")) else value
    return value if "," in value or not value else _joined(value, directory)


def _joined(path: str, directory: str) -> str:
    return os.path.normpath(os.path.join(directory, os.path.expanduser(path)))
