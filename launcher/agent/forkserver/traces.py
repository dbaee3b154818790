"""What the fork server's imports have left outside their modules: hidden until the worker imports them itself."""

from __future__ import annotations

import _warnings
import os
import sys
from types import ModuleType
from typing import Any, Dict, FrozenSet, List

from ..named_tuple import NamedTuple

_DEFAULT: Any = (0, True, [])
"""A logger's level, whether it propagates, and its handlers."""


def filters() -> List[Any]:
    """The active list of warning filters, not a copy."""
    found: List[Any] = _warnings.filters
    return found


class Before(NamedTuple):
    """The interpreter's state before an import."""

    filters: List[Any]
    attributes: FrozenSet[str]
    """Those of the module `sys`, where torch records that it was loaded."""


def before() -> Before:
    """The current state."""
    return Before(list(filters()), frozenset(vars(sys)))


class Traces:
    """Warning filters, loggers and `sys` attributes that the imports left, and what affects how a library is loaded."""

    def __init__(self, before: Before) -> None:
        """Remove what was added since `before`."""
        self._filters = [each for each in filters() if not any(each is other for other in before.filters)]
        self._change_filters([each for each in filters() if any(each is other for other in before.filters)])
        self._attributes = {name: vars(sys).pop(name) for name in set(vars(sys)) - before.attributes}
        self._loggers: Dict[Any, Any] = {}
        if "logging" in sys.modules:
            known = sys.modules["logging"].root.manager.loggerDict.values()
            loggers = [logger for logger in known if hasattr(logger, "handlers")]
            self._loggers = {logger: (logger.level, logger.propagate, list(logger.handlers)) for logger in loggers}
        self._process = self._loading()

    @staticmethod
    def _loading() -> Dict[str, Any]:
        return {"sys.setdlopenflags()": sys.getdlopenflags(), "os.sched_setaffinity()": os.sched_getaffinity(0)}

    def changes(self) -> List[str]:
        """What the script has changed in the process that a library reads when it is loaded."""
        here = self._loading()
        return [name for name, value in self._process.items() if value != here[name]]

    def put_back(self) -> None:
        """Restore them as if the import happened now: like an import, this overrides what the script has set before."""
        self._change_filters([*self._filters, *filters()])
        vars(sys).update(self._attributes)
        self._filters, self._attributes = [], {}
        stderr = sys.stderr
        for logger, (level, propagate, handlers) in self._loggers.items():
            logger.disabled = False
            if (level, propagate, handlers) == _DEFAULT:
                continue
            logger.setLevel(level)
            logger.propagate, logger.handlers[:] = propagate, handlers
            for handler in handlers:
                if stderr is not sys.__stderr__ and vars(handler).get("stream") is sys.__stderr__:
                    handler.setStream(stderr)
        self._loggers = {}

    @staticmethod
    def _change_filters(wanted: List[Any]) -> None:
        if len(wanted) != len(filters()):
            import warnings

            filters()[:] = wanted
            with warnings.catch_warnings():  # invalidates the caches of what was filtered
                pass


def taken(modules: Dict[str, ModuleType]) -> List[str]:
    """The names under which the script has put something else into `sys.modules`."""
    return [name for name, module in modules.items() if sys.modules.get(name, module) is not module]
