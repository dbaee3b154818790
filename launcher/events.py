"""Events as the launcher takes them: a node's words may be damaged or hostile, so a field of another kind is missing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from launcher.agent.protocol import Event, parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.agent.protocol import Record

_MAX_COUNT = 1 << 31


def record(line: bytes) -> Record:
    """The record that a line of a stream stands for."""
    found = parse(line)
    return Event(found.name, _checked(found.fields, _KINDS)) if isinstance(found, Event) else found


def _checked(fields: dict[str, Any], kinds: dict[str, Callable[[Any], bool]]) -> dict[str, Any]:
    kept = {name: value for name, value in fields.items() if value is None or kinds.get(name, _anything)(value)}
    if isinstance(kept.get("cause"), dict):
        kept["cause"] = {"class": "node", "message": "", **_checked(kept["cause"], _CAUSE)}
    return kept


def _anything(_value: object) -> bool:
    return True


def _text(value: object) -> bool:
    return isinstance(value, str)


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_COUNT


def _counts(value: object) -> bool:
    return isinstance(value, list) and all(map(_count, value))


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _code(value: object) -> bool:
    return _number(value) and isinstance(value, int)


def _named(*kinds: tuple[str, Callable[[Any], bool]]) -> dict[str, Callable[[Any], bool]]:
    return {name: kind for names, kind in kinds for name in names.split()}


_CAUSE = _named(
    ("class message host signal traceback", _text),
    ("node rank local_rank", _count),
    ("exit_code", _code),
    ("time", _number),
    ("secondary", lambda value: isinstance(value, bool)),
)
_KINDS = _named(
    ("run host python cwd after what reason signal result message master_addr", _text),
    ("node attempt version pid round restarts max_restarts nodes world_size master_port rank local_rank", _count),
    ("workers lines total lines_lost", _count),
    ("ranks", _counts),
    ("time limit_s deadline duration_s", _number),
    ("exit_code", _code),
    ("interfaces notes", lambda value: isinstance(value, list) and all(map(_text, value))),
    ("variables", lambda value: isinstance(value, list) and all(isinstance(one, dict) for one in value)),
    ("cause", lambda value: isinstance(value, dict)),
)
"""Those of docs/agent-stream.md that something here relies on."""
