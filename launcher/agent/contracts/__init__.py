"""How workers learn their place, one framework per file: `--contract NAME` is the module of that name."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, List

if TYPE_CHECKING:
    from ._contract import Contract


def names() -> List[str]:
    """All contracts, sorted."""
    import pkgutil  # the launcher needs it

    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def load(name: str) -> Contract:
    """The contract of that name; `ImportError` if there is none."""
    found: Contract = importlib.import_module(f".{name}", __name__).CONTRACT
    return found
