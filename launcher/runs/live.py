"""One run at the moment, from the records of its streams: what `distlaunch top` shows, the odd first."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from launcher.agent.protocol import Event
from launcher.runs import progress, status, stragglers, unread
from launcher.runs.hanging import Hanging
from launcher.runs.live_ranks import LiveRank, LiveRanks
from launcher.runs.samples import RECENT, NodeSample, RankSample, Recent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from launcher.agent.protocol import Record
    from launcher.results.progress import Finding, Watched
    from launcher.results.top import Top, TopNode, TopRank
    from launcher.runs.liveness import Liveness
    from launcher.runs.node_report import NodeReport
    from launcher.runs.outcome import Outcome
    from launcher.runs.records import Run

SILENT_S = 35.0
"""An agent writes something every 10 s, in a pod's log every 30 s."""

_LEAST, _ALL = 64, 32_000
"""So many of the latest samples are kept of a node at least, and of all nodes, if they are few enough."""

_STATES = {"T": "suspended", "t": "traced", "D": "in the kernel", "Z": "zombie"}
_FAILED, _SILENT, _STUCK, _FOUND = 4, 3, 2, 1


class Live:
    """One run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._report = status.report_of(run)
        self.ranks = LiveRanks()
        self._kept = max(_LEAST, min(RECENT, _ALL // max(1, len(self._report.nodes))))
        self._series: dict[int, Recent] = {}
        self._hanging = Hanging()
        self._heard: dict[int, float] = {}
        self._liveness: Liveness | None = None
        self._watched: Watched = {"progress": None, "findings": []}
        self._news = True
        """Whether there are samples that `_watched` does not know."""

    def add(self, node: int, records: Iterable[Record], now: float | None) -> None:
        """Take records of that node's stream; `now`: when they arrived, on our monotonic clock. None: long ago."""
        if not 0 <= node < len(self._report.nodes):
            return
        if now is not None:
            self._heard[node] = now
        for record in records:
            self.ranks.add(node, record, now)
            self._report.add(node, record)
            if isinstance(record, Event):
                self._hanging.add(node, record)
            if isinstance(record, Event) and record.name == "sample":
                self._series.setdefault(node, Recent(self._kept)).add(record)
                self._news = True

    def asked(self, liveness: Liveness) -> None:
        """Take what the backend reports."""
        self._liveness = liveness

    def outcome(self) -> Outcome:
        """The run as a whole."""
        alive, told = (self._liveness.nodes, self._liveness.told) if self._liveness else ((), {})
        report = unread.added_to(self._report, self._liveness)
        return report.outcome(alive, cancel_requested=self._run.cancel_requested, **told)

    def top(self, now: float) -> Top:
        """Everything, the odd first; `now`: on our monotonic clock."""
        outcome = self.outcome()
        samples = {node: series.samples[-1] for node, series in self._series.items() if series.samples}
        if self._news or outcome.final:
            self._watched, self._news = self._watch(ended=outcome.final), False
        found: dict[tuple[int, int | None], Finding] = {}
        for finding in self._watched["findings"]:
            found.setdefault((finding["node"], finding["rank"]), finding)
        nodes = [self._node(report, samples.get(report.node), found, now) for report in outcome.nodes]
        ranks = [self._rank(one, samples.get(one.node), found, now) for one in self.ranks.by_rank.values()]
        return {
            "run": self._run.id,
            "state": outcome.state,
            "detail": outcome.detail,
            "sampled": bool(samples),
            **self._watched,
            "nodes": [node for _, node in sorted(nodes, key=lambda pair: (-pair[0], pair[1]["node"]))],
            "ranks": [rank for _, rank in sorted(ranks, key=lambda pair: (-pair[0], pair[1]["rank"]))],
        }

    def _watch(self, *, ended: bool) -> Watched:
        nodes = {node: series.samples for node, series in self._series.items()}
        hosts = [node.host for node in self._report.nodes]
        found: Watched = {
            "progress": progress.of_run(nodes, ended=ended),
            "findings": [] if ended else stragglers.find(nodes, hosts),
        }
        return found if ended else self._hanging.added_to(found, nodes, hosts)

    def _silent_s(self, report: NodeReport, now: float) -> float | None:
        if report.node in self._heard:
            return now - self._heard[report.node]
        return None if report.last_seen is None else max(0.0, time.time() - report.last_seen)

    def _node(
        self, report: NodeReport, sample: NodeSample | None, found: Mapping[tuple[int, int | None], Finding], now: float
    ) -> tuple[int, TopNode]:
        silent_s = self._silent_s(report, now)
        word, odd, badness = _state_of(report, silent_s)
        if not odd and (finding := found.get((report.node, None))):
            odd, badness = finding["message"], _FOUND
        gpus = sample.gpus if sample else ()
        return badness, {
            "node": report.node, "host": report.host, "state": word, "odd": odd, "ranks": list(report.ranks),
            "cpu": getattr(sample, "cpu", None),
            "cpus": getattr(sample, "cpus", None),
            "memory_bytes": getattr(sample, "memory_bytes", None),
            "memory_total_bytes": getattr(sample, "memory_total_bytes", None),
            "gpu": _mean([gpu.use for gpu in gpus]),
            "gpu_memory_bytes": _sum([gpu.memory_bytes for gpu in gpus]),
            "power_w": _sum([gpu.power_w for gpu in gpus]),
            "received": getattr(sample, "received", None),
            "sent": getattr(sample, "sent", None),
            "rdma_received": getattr(sample, "rdma_received", None),
            "rdma_sent": getattr(sample, "rdma_sent", None),
            "restarts": report.restarts,
            "silent_s": None if silent_s is None else round(silent_s, 1),
        }  # fmt: skip

    def _rank(
        self, one: LiveRank, sample: NodeSample | None, found: Mapping[tuple[int, int | None], Finding], now: float
    ) -> tuple[int, TopRank]:
        one.count(now)
        place, use = _place(sample, one.rank)
        word, odd, badness = one.state, "", 0
        if one.failed:
            odd, badness = word, _FAILED
        elif word == "runs" and use is not None and use.state in _STATES:
            word = odd = _STATES[use.state]
            badness = _STUCK
        finding = found.get((one.node, one.rank)) or found.get((one.node, None))
        if not odd and finding:
            odd, badness = finding["message"], _FOUND
        gpus = sample.gpus if sample is not None and len(sample.gpus) == len(sample.ranks) else ()
        return badness, {
            "rank": one.rank, "node": one.node, "host": self._report.nodes[one.node].host, "state": word, "odd": odd,
            "cpu": getattr(use, "cpu", None),
            "memory_bytes": getattr(use, "memory_bytes", None),
            "gpu": gpus[place].use if gpus else None,
            "lines_per_s": one.rate,
            "step": getattr(use, "step", None),
            "steps": getattr(use, "steps", None),
            "loss": getattr(use, "loss", None),
            "silent_s": None if one.heard is None else round(now - one.heard, 1),
            "last_line": one.last_line,
        }  # fmt: skip


def _state_of(report: NodeReport, silent_s: float | None) -> tuple[str, str, int]:
    """A node's state in one word, why it is odd, and how much."""
    if report.result is not None:
        return (
            report.result,
            "" if report.result == "success" else report.result,
            0 if report.result == "success" else _FAILED,
        )
    if report.cause is not None:
        return "fails", str(report.cause.get("message") or ""), _FAILED
    if silent_s is not None and silent_s > SILENT_S:
        return "silent", f"no sign of life for {silent_s:.0f} s", _SILENT
    if report.stopping:
        return "stops", "", 0
    if report.started is None:
        return "waits", "", 0
    return ("runs" if report.workers else "starts"), "", 0


def _place(sample: NodeSample | None, rank: int) -> tuple[int, RankSample | None]:
    """The place of that rank on its node, and its sample."""
    return next(((n, one) for n, one in enumerate(sample.ranks if sample else ()) if one.rank == rank), (0, None))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 1) if known else None


def _sum(values: Sequence[float | int | None]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
