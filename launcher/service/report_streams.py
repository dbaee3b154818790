"""What a report needs of the streams of a run's nodes, read in one pass, or as they grow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from launcher.agent.system.folding import counted
from launcher.errors import BackendUnavailableError, StorageError
from launcher.runs import moves, sample_series, samples
from launcher.runs.history import History
from launcher.runs.tails import StreamSearch
from launcher.runs.taken_stacks import TakenStacks
from launcher.service import logs
from launcher.service.link_findings import NetworkNotes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from launcher.agent.protocol import Event
    from launcher.results.report import LogLine, RankLog
    from launcher.results.run import RunState
    from launcher.runs.records import Run
    from launcher.runs.samples import NodeSample
    from launcher.runs.tails import TailLine

_LOG_BYTES = 200_000
"""How much text of all ranks a report has."""

_RANK_BYTES, _RANK_LEAST_BYTES = 20_000, 1_000
_LINE_CHARACTERS = 400
_LONG_S = 4 * 3600.0
"""Of a longer run, only samples that name all fields are read, and no more of them than are kept."""

_WHOLE_S = 60.0
_SAMPLES = 2 * sample_series.POINTS

_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
"""Terminal codes."""

_ALL_LINES, _LEAST_LINES, _MOST_LINES = 4000, 20, 200
_QUIET = frozenset({"sample", "first_line"})
"""Events that do not change a run's state."""


class ReportStreams:
    """Takes the streams of all nodes."""

    def __init__(self, run: Run, state: RunState) -> None:
        self._run = run
        self._hosts = moves.hosts(run)
        self.history = History(self._hosts, None if run.attempt else run.created or None)
        self.stacks = TakenStacks(self._hosts)
        self.network = NetworkNotes()
        self.recorders: list[tuple[int, Mapping[str, Any]]] = []
        """What flight recorders have told: the node that compared them, and the fields of the event."""

        self.news = False
        """Whether anything has arrived that may have changed the run's state; a reader resets it."""

        ranks = sum(len(node["ranks"]) for node in state["nodes"]) or 1
        length_s = state["duration_s"] or 0.0
        every = 0 if length_s < _LONG_S else max(1, int(length_s / _WHOLE_S / _SAMPLES))
        kept = max(_LEAST_LINES, min(_MOST_LINES, _ALL_LINES // ranks))
        self._seen: set[int] = set()
        self._last = -1
        self._samples = {node: samples.Series(_SAMPLES) for node in range(len(self._hosts))}
        self._nodes = {node: StreamSearch(node, kept, sample_every=every) for node in range(len(self._hosts))}

    def read(self) -> str:
        """Read all streams to their ends. Returns why not all of them could be read, if so."""
        if self._run.private:
            return self._run.private
        try:
            for source, block in logs.blocks(self._run, self._nodes, follow=False):
                if isinstance(source, int):
                    self.feed(source, block)
        except (StorageError, BackendUnavailableError) as error:
            return f"not all output could be read: {error.message}"
        for node, search in self._nodes.items():
            self._take(node, search.close())
        return ""

    def feed(self, node: int, block: bytes) -> None:
        """Take what follows in a node's stream, split anywhere."""
        if node in self._nodes:
            if node != self._last and self._last in self._nodes:
                self._nodes[self._last].settle()
            self._last = node
            self._seen.add(node)
            self._take(node, self._nodes[node].feed(block))

    def follow(self) -> None:
        """Take all samples from here on."""
        for search in self._nodes.values():
            search.sample_every = 0

    def silent(self) -> str:
        """Which nodes have sent nothing, in words; empty if all have."""
        silent = [node for node in range(len(self._run.hosts)) if node not in self._seen]
        return counted(silent, "node") if silent else ""

    def hosts(self, state: RunState) -> list[str]:
        """The host of each node from which something may have come."""
        return [node["host"] for node in state["nodes"]] + self._hosts[len(state["nodes"]) :]

    def samples(self) -> dict[int, Sequence[NodeSample]]:
        """The samples of each node that has sent some."""
        return {node: kept for node, series in self._samples.items() if (kept := series.samples)}

    def logs(self, state: RunState) -> tuple[list[RankLog], int]:
        """The last lines of each rank, those of the first cause's rank first; and how many ranks had no room."""
        found = [(rank, node, lines) for node, search in self._nodes.items() for rank, lines in search.lines().items()]
        cause = state["cause"]
        guilty = cause.get("rank") if cause else None
        found.sort(key=lambda each: (each[0] != guilty, each[0], each[1]))
        most = _LOG_BYTES // _RANK_LEAST_BYTES
        room = min(_RANK_BYTES, _LOG_BYTES // max(1, min(len(found), most)))
        hosts = self.hosts(state)
        kept: list[RankLog] = [
            {"rank": rank, "node": node, "host": hosts[node], "lines": _fitting(lines, room)}
            for rank, node, lines in found[:most]
        ]
        return kept, len(found) - len(kept)

    def _take(self, node: int, events: Iterable[Event]) -> None:
        for event in events:
            self.news = self.news or event.name not in _QUIET
            self.history.add(node, event)
            self.stacks.add(node, event)
            self.network.add(node, event)
            if event.name == "flight_recorder":
                self.recorders.append((node, event.fields))
            self._samples[node].add(event)


def _fitting(lines: list[TailLine], room: int) -> list[LogLine]:
    """The last of these lines, as text, that fit into so many bytes."""
    found: list[LogLine] = []
    for line in reversed(lines):
        text = _shown(line.text)
        room -= len(text.encode()) + 1
        if room < 0 and found:
            break
        found.append({"stderr": line.stderr, "text": text})
    return found[::-1]


def _shown(line: bytes) -> str:
    """What a terminal would show of the line in the end, without its colours."""
    text = _CODES.sub("", line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace").expandtabs(4))
    if not text.isprintable():
        text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return text if len(text) <= _LINE_CHARACTERS else f"{text[:_LINE_CHARACTERS]} …"
