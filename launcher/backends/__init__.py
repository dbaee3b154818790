"""Backends by name. Adding one is adding a file here; nothing else names it."""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING, Any

from launcher import names as similar
from launcher.errors import SpecError

if TYPE_CHECKING:
    from launcher.backends._base import Backend

ALIASES = {"k8s": "kubernetes"}


def names() -> list[str]:
    """All backends as the command line names them, sorted."""
    short = {full: alias for alias, full in ALIASES.items()}
    found = (module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    return sorted(short.get(name, name) for name in found)


def load(name: str) -> type[Backend[Any]]:
    """The backend class of that name; `SpecError` lists the known ones."""
    import importlib

    if name not in names():
        raise SpecError(f"unknown backend {name!r}", hint=similar.hint(name, names()))
    module = importlib.import_module(f"launcher.backends.{ALIASES.get(name, name)}")
    backend: type[Backend[Any]] = module.BACKEND
    return backend
