"""JSON lines (`--output jsonl`): one object for each line of a worker and each event, as it comes.

The result of the command is the last object. Types: `launcher.results.lines`.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from launcher import output
from launcher.console.worker_output import WorkerOutput

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from launcher.agent.protocol import Event, Output
    from launcher.results.lines import EventLine, RunLine, StateLine, WorkerLine
    from launcher.runs.reader import MarkedLines
    from launcher.runs.records import Run

_LONGEST_BYTES = 1 << 20

_Key = tuple[int, int, bool]


def or_plain(ranks: AbstractSet[int] | None, *, stdout: int | None = None) -> WorkerOutput:
    """Shows what workers write, as JSON lines if that is the output format."""
    return JsonLines(ranks) if output.form() == "jsonl" else WorkerOutput(ranks, stdout=stdout)


def begin(run: Run) -> None:
    """Print the first object, which names the run; nothing in other formats."""
    if output.form() == "jsonl":
        line: RunLine = {"type": "run", "run": run.id, "path": str(run.path), "job_id": run.job_id}
        output.json_line(line)


class JsonLines(WorkerOutput):
    """Prints whole lines, and events."""

    def __init__(self, ranks: AbstractSet[int] | None) -> None:
        super().__init__(ranks, stdout=output.STDOUT)
        self._unfinished: dict[_Key, bytes] = {}
        self._state = ("", "")

    def show(self, record: Output, now: float) -> None:  # noqa: ARG002 - for workers on terminals
        """Print the lines that the record completes; an incomplete one is kept, up to a megabyte."""
        self.shown = True
        key = (record.node, record.rank, record.stderr)
        data = self._unfinished.pop(key, b"") + record.data
        if not record.ends_line and len(data) < _LONGEST_BYTES:
            self._unfinished[key] = data
            return
        for line in data.split(b"\n"):
            self._line(key, line)

    def show_lines(self, lines: MarkedLines, now: float) -> None:
        """Print each of the lines."""
        self.show(lines.output(), now)

    def event(self, node: int, record: Event) -> None:
        """Print the event."""
        line: EventLine = {"type": "event", "node": node, "event": record.name, "fields": dict(record.fields)}
        self._print(line)

    def state(self, state: str, detail: str) -> None:
        """Print the run's state, if it has changed."""
        if (state, detail) != self._state:
            self._state = (state, detail)
            line: StateLine = {"type": "state", "state": state, "detail": detail}
            self._print(line)

    def flush(self, now: float) -> None:
        """Nothing is held back for a time."""

    def end_line(self) -> None:
        """No line is ever open."""

    def close(self) -> None:
        """Print what was never completed."""
        for key, rest in self._unfinished.items():
            self._line(key, rest)
        self._unfinished.clear()

    def _line(self, key: _Key, data: bytes) -> None:
        node, rank, stderr = key
        text = data.decode(errors="replace")
        line: WorkerLine = {
            "type": "line",
            "node": node,
            "rank": rank,
            "stream": "stderr" if stderr else "stdout",
            "text": text,
        }
        if text.encode() != data:
            line["base64"] = base64.b64encode(data).decode()
        self._print(line)

    def _print(self, line: WorkerLine | EventLine | StateLine) -> None:
        if not output.json_line(line):
            self.closed = True
