"""A run as a whole: its state, its history, what is worth knowing and its last lines, for `distlaunch report`."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, cast

from launcher import __version__
from launcher.console import summary
from launcher.errors import BackendUnavailableError, RequestError, StorageError
from launcher.runs import sample_series, samples
from launcher.runs.history import History
from launcher.runs.tails import StreamSearch
from launcher.service import listing, logs, observations, observe, reproduce, start_losses
from launcher.system import amounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from launcher.agent.protocol import Event
    from launcher.results.report import LogLine, RankLog, Report
    from launcher.results.run import RunState
    from launcher.runs.records import Run
    from launcher.runs.samples import NodeSample
    from launcher.runs.tails import TailLine

_LOG_BYTES = 200_000
"""How much text of all ranks a report has."""

_RANK_BYTES, _RANK_LEAST_BYTES = 20_000, 1_000
_LINE_CHARACTERS = 400
_LONG_S = 4 * 3600.0
"""Of a longer run, only the samples that name all fields are read."""

_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
"""Terminal codes."""

_ALL_LINES, _LEAST_LINES, _MOST_LINES = 4000, 20, 200


def make(run: Run) -> Report:
    """The report of a run of any backend, ended or not. Raises `RequestError` for a job array or a damaged run."""
    observe.whole(run)
    if run.tasks:
        raise RequestError(f"{run.id} is a job array", hint=f"distlaunch report {run.id}/{run.tasks[0]}")
    state, now = observe.state_of(run), time.time()
    read = _Streams(run, state)
    end = now if state["exit_code"] is None else max((node["last_seen"] or 0.0 for node in state["nodes"]), default=now)
    whole = listing.whole(run, state)
    starts, measured = read.history.starts(), read.samples()
    series = sample_series.series(measured)
    return cast(
        "Report",
        {
            **whole,
            "made": round(now, 3),
            "launcher_version": __version__,
            "verdict": verdict(state),
            "explanation": summary.cause_lines(state["cause"], run) if state["cause"] else [],
            "observations": [*observations.of_run(state, series, whole["findings"]), *start_losses.observed(starts)],
            "startup": start_losses.startup(starts),
            "rounds": read.history.rounds(end),
            "moments": read.history.moments(),
            "samples": series,
            "progress_curves": sample_series.progress(measured),
            "missing": read.missing,
            "logs": read.logs(),
            "settings": reproduce.settings(run),
            "reproduce": reproduce.command(run),
        },
    )


def verdict(state: RunState) -> str:
    """How the run ended or how it is, in one sentence."""
    text, took = state["state"].replace("_", " ").capitalize(), state["duration_s"]
    if took is not None:
        text += f" {'for' if state['exit_code'] is None else 'after'} {summary.duration(took)}"
    waited = summary.queued(state["queued_s"])
    text += summary.restarts(state["restarts"], state["attempt"]) + (f"; {waited}" if waited else "")
    return f"{text}: {state['detail']}" if state["detail"] else text


class _Streams:
    """What is read from the streams of all nodes, in one pass."""

    def __init__(self, run: Run, state: RunState) -> None:
        self._run, self._state = run, state
        self.history = History(run.hosts, None if run.attempt else run.created or None)
        self.missing: list[str] = []
        ranks = sum(len(node["ranks"]) for node in state["nodes"]) or 1
        all_samples = (state["duration_s"] or 0.0) < _LONG_S
        kept = max(_LEAST_LINES, min(_MOST_LINES, _ALL_LINES // ranks))
        self._samples = {node: samples.Series(2 * sample_series.POINTS) for node in range(len(run.hosts))}
        self._nodes = {node: StreamSearch(node, kept, all_samples=all_samples) for node in range(len(run.hosts))}
        if run.private:
            self.missing.append(run.private)
            return
        try:
            self._read()
        except (StorageError, BackendUnavailableError) as error:
            self.missing.append(f"not all output could be read: {error.message}")

    def _read(self) -> None:
        seen: set[int] = set()
        for source, block in logs.blocks(self._run, self._nodes, follow=False):
            if isinstance(source, int) and source in self._nodes:
                seen.add(source)
                self._take(source, self._nodes[source].feed(block))
        for node, search in self._nodes.items():
            self._take(node, search.close())
        silent = [node for node in self._nodes if node not in seen]
        if silent:
            names = amounts.listed(silent, 10)
            self.missing.append(f"node{'s' * (len(silent) > 1)} {names}: nothing has been received")

    def _take(self, node: int, events: Iterable[Event]) -> None:
        for event in events:
            self.history.add(node, event)
            self._samples[node].add(event)

    def samples(self) -> dict[int, Sequence[NodeSample]]:
        """The samples of each node that has sent some."""
        return {node: kept for node, series in self._samples.items() if (kept := series.samples)}

    def logs(self) -> list[RankLog]:
        """The last lines of each rank, as far as there is room; those of the first cause's rank first."""
        found = [(rank, node, lines) for node, search in self._nodes.items() for rank, lines in search.lines().items()]
        cause = self._state["cause"]
        guilty = cause.get("rank") if cause else None
        found.sort(key=lambda each: (each[0] != guilty, each[0], each[1]))
        most = _LOG_BYTES // _RANK_LEAST_BYTES
        if len(found) > most:
            self.missing.append(f"the lines of {len(found) - most} more ranks: distlaunch logs --rank N {self._run.id}")
        room = min(_RANK_BYTES, _LOG_BYTES // max(1, min(len(found), most)))
        return [
            {"rank": rank, "node": node, "host": self._host(node), "lines": _fitting(lines, room)}
            for rank, node, lines in found[:most]
        ]

    def _host(self, node: int) -> str:
        nodes = self._state["nodes"]
        return nodes[node]["host"] if node < len(nodes) else self._run.hosts[node]


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
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return text if len(text) <= _LINE_CHARACTERS else f"{text[:_LINE_CHARACTERS]} …"
