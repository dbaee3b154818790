"""How workers learn their place, one framework per file: `--contract NAME` is the module of that name."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, List

if TYPE_CHECKING:
    from ._contract import Contract


def names() -> List[str]:
    """All contracts, sorted."""
    import pkgutil  # imports `inspect`, which takes as long as half of the launcher's own modules

    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def has(name: str) -> bool:
    """Whether there is a contract of that name."""
    from importlib.util import find_spec  # the launcher needs it

    return name.isidentifier() and not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None


def load(name: str) -> Contract:
    """The contract of that name; `ImportError` if there is none."""
    found: Contract = importlib.import_module(f".{name}", __name__).CONTRACT
    return found
