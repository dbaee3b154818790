"""What a node's stream says of an event arrives in the launcher, as docs/agent-stream.md has it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from launcher.agent.protocol import Event
from launcher.runs import events
from tests.command import ROOT

if TYPE_CHECKING:
    from tests.command import Cli

TEXT = (ROOT / "docs/agent-stream.md").read_text("utf-8")
VALUES: tuple[object, ...] = (
    1,
    0.5,
    True,
    "a text",
    "0-3,8",
    [],
    {},
    {"node": 1, "host": "b"},
    {"value": None, "reason": "a text"},
    {"time": 1.0, "silent_s": 1.0, "odd": [], "message": "a text"},
)
"""Of these, a field has at least one."""


def documented() -> dict[str, list[str]]:
    """The fields of each event. What is in parentheses, after a colon or after `as of` is about them."""
    (table,) = re.findall(r"\| event \| fields \| when \|\n(.*?)\n\n", TEXT, re.DOTALL)
    about = re.compile(r"\([^()]*\)|: .*|as of `\w+`")
    found = {
        name: ["time", "node", "attempt", *re.findall(r"`([a-z]\w*)`", about.sub("", about.sub("", fields)))]
        for name, fields in re.findall(r"^\| `(\w+)` \| (.*?) \| ", table, re.MULTILINE)
        if name not in ("block", "facts")  # their readers have checks of their own
    }
    (samples,) = re.findall(r"## Samples\n.*?\| field \| meaning \|\n(.*?)\n\n", TEXT, re.DOTALL)
    found["sample"] += ["sample", "whole", *re.findall(r"`(\w+)`(?=.* \| )", re.sub(r"(?m)( \| ).*", r"\1", samples))]
    return found


@pytest.mark.parametrize(("event", "fields"), documented().items())
def test_each_documented_field_arrives(event: str, fields: list[str]) -> None:
    arrived: set[str] = set()
    for value in VALUES:
        record = events.record(json.dumps({"event": event, **dict.fromkeys(fields, value)}).encode())
        assert isinstance(record, Event)
        arrived |= {*record.fields}

    assert [*fields] == [field for field in fields if field in arrived]


@pytest.mark.parametrize("cpus", [8, "0-3;rm", "0," * 4096, None, ["0"]])
def test_what_is_no_list_of_processors_does_not_arrive(cpus: object) -> None:
    arrived = events.record(json.dumps({"event": "worker_started", "cpus": cpus}).encode())

    assert isinstance(arrived, Event)
    assert arrived.fields.get("cpus") is None


def test_all_fields_of_a_runs_events_are_shown(distlaunch: Cli) -> None:
    argv = ("local", "--numa-binding", "exclusive", "--output", "jsonl", "--no-python", "true")
    done = distlaunch(*argv)

    assert done.exit_code == 0, done.stderr
    shown = [line for line in map(json.loads, done.stdout.splitlines()) if line["type"] == "event"]
    (stream,) = distlaunch.runs.glob("*/nodes/0/stream")
    said = [json.loads(line) for line in stream.read_bytes().splitlines() if line.startswith(b'{"event":')]
    assert [{"event": line["event"], **line["fields"]} for line in shown] == said
    (started,) = (event for event in said if event["event"] == "worker_started")
    assert re.fullmatch(r"[\d,-]+", started["cpus"])
