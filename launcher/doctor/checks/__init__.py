"""The checks of doctor: every module in this package is one."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.doctor.check import Check


@cache
def known() -> Mapping[str, Check]:
    """All checks by name, in their order."""
    names = [found.name for found in pkgutil.iter_modules(__path__)]
    checks: dict[str, Check] = {name: importlib.import_module(f"{__name__}.{name}").CHECK for name in names}
    return dict(sorted(checks.items(), key=lambda item: item[1].column))
