"""Backends by name. A new one is a package here whose `backend.py` ends in `BACKEND = ...`; nothing else names it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from launcher.errors import SpecError
from launcher.system import names as similar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.backends._base import AnyBackend

ALIASES = {"k8s": "kubernetes"}


def names() -> list[str]:
    """All backends as the command line names them, sorted."""
    short = {full: alias for alias, full in ALIASES.items()}
    found = (
        name
        for path in __path__
        for name in os.listdir(path)
        if os.path.exists(os.path.join(path, name, "__init__.py"))
    )
    return sorted(short.get(name, name) for name in found)


def summary(name: str) -> str:
    """One line about a backend: the first line of its package's docstring, so that nothing else is imported."""
    return about(name).partition("\n")[0]


def about(name: str) -> str:
    """The whole docstring of a backend's package: one line, and examples."""
    import importlib

    return importlib.import_module(f"launcher.backends.{ALIASES.get(name, name)}").__doc__ or ""


@contextmanager
def begun(words: Sequence[str]) -> Iterator[None]:
    """Begin what the backend of a command with these words can do while that is imported (`ahead.py`)."""
    name = words[0] if words else ""
    known = name in names()
    if not known or not any(os.path.exists(os.path.join(path, name, "ahead.py")) for path in __path__):
        yield
        return
    import importlib

    ahead = importlib.import_module(f"launcher.backends.{name}.ahead")
    try:
        ahead.begin(words[1:])
        yield
    finally:
        ahead.drop()


def load(name: str) -> type[AnyBackend]:
    """The backend class of that name; `SpecError` lists the known names."""
    import importlib

    if name not in names():
        raise SpecError(f"unknown backend {name!r}", hint=similar.hint(name, names()))
    module = importlib.import_module(f"launcher.backends.{ALIASES.get(name, name)}.backend")
    backend: type[AnyBackend] = module.BACKEND
    return backend
