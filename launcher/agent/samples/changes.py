"""Delta coding: a sample names only the fields that differ from the sample before it."""

from __future__ import annotations

from typing import Any, Dict

_WHOLE_EVERY = 6
_ALWAYS = "ranks"
"""Without it, no one can tell whose the columns are."""


class Changes:
    """The samples of one agent, in order."""

    def __init__(self) -> None:
        self._number = 0
        self._last: Dict[str, Any] = {}

    def of(self, fields: Dict[str, Any]) -> Dict[str, Any]:
        """What to write for these fields; one sample in a minute is whole, for readers that have not seen the others.

        `sample` counts them, so that a reader notices a missing one. None: the field has no value any more.
        """
        number, last = self._number, self._last
        self._number, self._last = number + 1, {name: value for name, value in fields.items() if value is not None}
        if number % _WHOLE_EVERY == 0:
            return {"sample": number, "whole": True, **self._last}
        gone = {name: None for name in last if name not in self._last}
        changed = {name: value for name, value in self._last.items() if name == _ALWAYS or last.get(name) != value}
        return {"sample": number, **changed, **gone}
