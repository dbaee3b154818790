"""Paths in a settings file are relative to that file, wherever the command is run."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any


def anchored(values: dict[str, Any], folder: str, *classes: type) -> dict[str, Any]:
    """The values with the paths among them made whole; options of these classes say which are paths, and how (`path`)."""
    kinds = {item.name: item.metadata["path"] for cls in classes for item in fields(cls) if item.metadata["path"]}
    return {key: _whole(value, kinds[key], folder) if key in kinds else value for key, value in values.items()}


def _whole(value: Any, kind: str, folder: str) -> Any:
    if isinstance(value, tuple):
        return tuple(_whole(part, kind, folder) for part in value)
    if kind == "list":
        return os.pathsep.join(_joined(part, folder) for part in value.split(os.pathsep) if part)
    if kind == "at":
        return "@" + _joined(value[1:], folder) if value.startswith("@") else value
    if kind == "dots":
        return _joined(value, folder) if value.startswith(("./", "../")) else value
    return value if "," in value or not value else _joined(value, folder)


def _joined(path: str, folder: str) -> str:
    return os.path.normpath(os.path.join(folder, os.path.expanduser(path)))
