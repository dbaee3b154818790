"""Checks that `launcher` is the package that comes with distlaunch: a user's file of that name may be found first."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder


def hidden_by() -> str:
    """Path of what is found in place of our package; empty if our package is found."""
    ours = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "launcher")
    module = sys.modules.get("launcher")
    spec = getattr(module, "__spec__", None) if module else PathFinder.find_spec("launcher")
    origin = getattr(module, "__file__", None) or (spec.origin if spec else None) or ""
    if not origin:
        places = list(getattr(spec, "submodule_search_locations", None) or [])
        origin = places[0] if places else ""
        return origin if not places or os.path.realpath(origin) != os.path.realpath(ours) else ""
    return "" if os.path.realpath(os.path.dirname(origin)) == os.path.realpath(ours) else origin


def sentence() -> str:
    """The message about it; empty if our package is found."""
    path = hidden_by()
    mend = "rename it, or start Python where it is not found first"
    return f"{path} hides the package `launcher`, which is part of distlaunch: {mend}" if path else ""


def check() -> None:
    """Raise `ImportError` if something else is found in place of our package."""
    if wrong := sentence():
        raise ImportError(wrong, name="launcher")
