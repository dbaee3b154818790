"""Events as the launcher accepts them: nodes may send damaged or hostile data, so fields of wrong types are dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.agent.failures import Failure
from launcher.agent.protocol import Event, parse
from launcher.system import numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.agent.protocol import Record

FACTS = "facts"
_MAX_COUNT = 1 << 31
_MAX_PROCESSORS = 4096
"""So many characters has a list of CPUs at most."""

_NUMBERS = frozenset({int, float, type(None)})


def record(line: bytes) -> Record:
    """The record that a line of a stream encodes."""
    found = parse(line)
    if isinstance(found, Event) and found.name != FACTS:  # readers of facts check their form
        return Event(found.name, _checked(found.fields, _WORKERS if found.name == "worker_started" else _KINDS))
    return found


def _checked(fields: dict[str, Any], kinds: dict[str, Callable[[Any], bool]]) -> dict[str, Any]:
    """Known fields of the right type. Anything else is dropped, as its size is unbounded."""
    kept = {name: value for name, value in fields.items() if name in kinds and (value is None or kinds[name](value))}
    if isinstance(kept.get("cause"), dict):
        kept["cause"] = {"class": Failure.NODE, "message": "", **_checked(kept["cause"], _CAUSE)}
    return kept


def _text(value: object) -> bool:
    return isinstance(value, str)


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_COUNT


def _processors(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_PROCESSORS and not value.strip("0123456789,-")


def _asked_by(value: object) -> bool:
    if not isinstance(value, dict) or set(value) != {"node", "host"}:
        return False
    return (value["node"] is None or _count(value["node"])) and (value["host"] is None or _text(value["host"]))


def _counts(value: object) -> bool:
    return isinstance(value, list) and all(map(_count, value))


def _numbers(value: object) -> bool:
    """A number, or null, for each of a node's ranks, GPUs or links. Of a long run, most of what is checked is this."""
    if not isinstance(value, list) or not _NUMBERS.issuperset(map(type, value)):
        return False
    return all(map(numbers.is_number, {*value} - {None}))


def _column(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A check of one value for each of a node's ranks or GPUs, or null."""
    return lambda value: isinstance(value, list) and all(each is None or kind(each) for each in value)


def _code(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and _count(abs(value))


def _variables(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, dict) and all(_text(one.get(key)) for key in _VARIABLE) for one in value
    )


def _threads(value: object) -> bool:
    return (
        isinstance(value, dict) and _text(value.get("reason")) and (value.get("value") is None or _text(value["value"]))
    )


def _stack_groups(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, dict)
        and set(one) == {"ranks", "frames", "threads", "state"}
        and _counts(one["ranks"])
        and (one["state"] is None or _text(one["state"]))
        and isinstance(one["threads"], list)
        and all(map(_frames, [one["frames"], *one["threads"]]))
        for one in value
    )


def _hang(value: object) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"time", "silent_s", "odd", "message"}
        and numbers.is_number(value["time"])
        and numbers.is_number(value["silent_s"])
        and _counts(value["odd"])
        and _text(value["message"])
    )


def _frames(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(frame, dict)
        and set(frame) - {"text"} == {"function", "file", "line"}
        and _count(frame["line"])
        and all(_text(text) for name, text in frame.items() if name != "line")
        for frame in value
    )


def _named(*kinds: tuple[str, Callable[[Any], bool]]) -> dict[str, Callable[[Any], bool]]:
    return {name: kind for names, kind in kinds for name in names.split()}


_VARIABLE = ("name", "value", "source", "reason")
_CAUSE = _named(
    ("class message host signal traceback", _text),
    ("node rank local_rank", _count),
    ("exit_code", _code),
    ("time", numbers.is_number),
    ("secondary", lambda value: isinstance(value, bool)),
)
_KINDS = _named(
    ("id run host python cwd output_dir after what reason signal result message action text", _text),
    ("master_addr data path contract role place kernel python_version torch_version", _text),
    ("node attempt version pid round restarts max_restarts nodes world_size master_port rank local_rank", _count),
    ("workers lines total lines_lost part parts cpus gpus all_nodes", _count),
    ("ranks odd", _counts),
    ("time silent_s limit_s deadline duration_s waited_s import_s", numbers.is_number),
    ("start_ticks memory_bytes received_bytes linked_bytes", numbers.is_number),
    ("by", _asked_by),
    ("exit_code", _code),
    ("interfaces notes links files problems", lambda value: isinstance(value, list) and all(map(_text, value))),
    ("variables", _variables),
    ("threads", _threads),
    ("cause", lambda value: isinstance(value, dict)),
    ("sample", _count),
    ("cpu memory_mib memory_total_mib received sent rdma_received rdma_sent", numbers.is_number),
    ("gpu_use gpu_memory_mib gpu_memory_total_mib gpu_power_w", _numbers),
    ("rank_cpu rank_memory_mib rank_lines rank_step rank_steps rank_loss rank_time", _numbers),
    ("link_gbps link_downs link_errors", _numbers),
    ("rank_state", _column(_text)),
    ("groups", _stack_groups),
    ("hang", _hang),
    ("findings", lambda value: isinstance(value, list) and all(isinstance(each, dict) for each in value)),
    ("early keyboard whole used stopped bytecode", lambda value: isinstance(value, bool)),
)
"""The fields in docs/agent-stream.md."""

_WORKERS = {**_KINDS, "cpus": _processors}
