"""The objects of JSON lines, `--output jsonl`: of launches, `attach` and `logs`. The last one is the result."""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class RunLine(TypedDict):
    """The first object: the run."""

    type: Literal["run"]
    run: str
    """Its id."""

    path: str
    """Its directory."""

    job_id: str | None
    """The scheduler's own id; null if there is none, or none is known yet."""


class _MaybeBytes(TypedDict, total=False):
    base64: str
    """The exact bytes, if they are not valid UTF-8."""


class WorkerLine(_MaybeBytes):
    """A line that a worker wrote."""

    type: Literal["line"]
    node: int
    rank: int
    stream: Literal["stdout", "stderr"]
    text: str
    """Without its line end."""


class EventLine(TypedDict):
    """An event of a node's agent; docs/agent-stream.md lists names and fields."""

    type: Literal["event"]
    node: int
    event: str
    fields: dict[str, Any]


class StateLine(TypedDict):
    """The run's state has changed."""

    type: Literal["state"]
    state: str
    detail: str
    """Why it is in this state, if there is more to say."""


LINES: tuple[type, ...] = (RunLine, WorkerLine, EventLine, StateLine)
"""Every object but the last one, which is an envelope with `type` `result`."""
