"""The state of a run at this moment, from the ends of its streams: never from all of them."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from launcher.agent.protocol import Event, Foreign, Output
from launcher.errors import StorageError
from launcher.results.run import nothing
from launcher.runs import events, lock, records
from launcher.runs.outcome import EXIT_CODES, Outcome, RunReport
from launcher.system import input_file, storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from launcher.agent.protocol import Record
    from launcher.results.run import RunState
    from launcher.runs.liveness import Liveness
    from launcher.runs.records import Run

END_BYTES = 128 * 1024
"""How much is read of each end of a stream: the first events are at its head, `done` is its last line."""

STREAM_DELAY_S = 60.0
"""Network file systems show what another host appended after at most so long."""

SUBMISSION_S = 60.0
"""A run without a handle of which nobody says that he submits it is about to be for at most so long."""

NOTHING_SENT = "its launcher ended before the run was submitted"
_PARTLY_SENT = "its launcher ended while it submitted the run, which may lack nodes"


def unsure(run: Run) -> str:
    """Why something may be left of a submission that went wrong; empty where its launcher had no time to say so."""
    left = run.known.get("submitting")
    return left if isinstance(left, str) else ""


def nothing_found(run: Run) -> str:
    """What there is to say of a run of which nothing is there."""
    why = unsure(run)
    return f"nothing of it is there now, and something may yet come: {why}" if why else NOTHING_SENT


def partly_sent(run: Run) -> str:
    """What there is to say of one that was not submitted to the end, and of which something is there."""
    why = unsure(run)
    return f"its submission went wrong, and what is there may lack nodes: {why}" if why else _PARTLY_SENT


def report_of(run: Run) -> RunReport:
    """An empty report for that run."""
    return RunReport(run.hosts, min_nodes=run.min_nodes, may_start_again=run.may_start_again, attempt=run.attempt)


def observe(run: Run, liveness: Liveness | None = None) -> Outcome:
    """What the streams in the run's directory add up to, with the backend's word for each node.

    A final outcome is written to the run's directory, as nobody seems to have seen it before.
    """
    report = report_of(run)
    alive = liveness.nodes if liveness else ()
    for node in report.nodes:
        path = run.stream_path(node.node)
        for record in ends(path):
            node.add(record)
        with suppress(OSError):
            # Workers that write much push the last heartbeat out of the part that we read.
            node.last_seen = max(node.last_seen or 0.0, round(path.stat().st_mtime, 3))
        if node.result is None:
            for event in last_words(run, node.node):
                node.add(event)
        if node.result is None and node.node < len(alive) and alive[node.node] == "ended":
            node.last_words.extend(agent_stderr(run, node.node, started=node.started is not None))
    told = liveness.told if liveness else {}
    outcome = report.outcome(alive, cancel_requested=run.cancel_requested, **told)
    if outcome.final and _settled(outcome):
        with suppress(StorageError):
            records.finish(run, outcome.to_json())
    return outcome


def _settled(outcome: Outcome) -> bool:
    """Whether a `done` that is missing cannot merely be late, as on a network file system."""
    late = time.time() - STREAM_DELAY_S
    return all(node.result is not None or (node.last_seen or 0.0) < late for node in outcome.nodes)


def current(run: Run) -> RunState | None:
    """The state as far as the directory alone tells it; None when the backend has to be asked."""
    if run.damaged:
        return nothing("unknown", run.damaged)
    if (result := run.result) is not None and result.get("state") in EXIT_CODES:
        return ended(result)
    return None if run.submitted else _unsubmitted(run)


def ended(result: Mapping[str, Any]) -> RunState:
    """What a `result.json` says, which an earlier version may have written: without what that did not know."""
    return cast("RunState", {**nothing("unknown"), **result})


def _unsubmitted(run: Run) -> RunState | None:
    """The state of a run whose launcher is still sending it, or has died before it began to; None: of one that it died of."""
    owner = lock.owner(run.whole_path)
    if owner is not None and owner.submits and not owner.seems_gone:
        return nothing("pending", f"being submitted by {owner}")
    if run.handle is not None:
        return None
    young = owner is None and time.time() - run.created < SUBMISSION_S
    return nothing("pending", "being submitted") if young else nothing("unknown", NOTHING_SENT)


def ends(path: Path) -> Iterator[Record]:
    """Events and foreign lines at the head and at the tail of a stream; none where there is no stream yet."""
    parts: list[bytes] = []
    with storage.read_errors(path), suppress(FileNotFoundError), input_file.open_file(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        parts = [file.read(size if size <= 2 * END_BYTES else END_BYTES)]
        if size > 2 * END_BYTES:
            file.seek(size - END_BYTES)
            parts.append(file.read(END_BYTES).partition(b"\n")[2])
    for part in parts:
        for line in part.split(b"\n")[:-1]:
            record = events.record(line)
            if isinstance(record, (Event, Foreign)):
                yield record


def last_lines(path: Path, rank: int, count: int = 10) -> list[str]:
    """The last lines that a rank wrote to stderr: what there is to say of a worker without a Python traceback."""
    try:
        data = input_file.end_of(path, END_BYTES)
    except OSError:
        return []
    text = b""
    for line in data.split(b"\n"):
        record = events.record(line)
        if isinstance(record, Output) and record.rank == rank and record.stderr:
            text += record.data + (b"\n" if record.ends_line else b"")
    return text.decode(errors="replace").splitlines()[-count:]


def last_words(run: Run, node: int) -> list[Event]:
    """What an agent tells where there is room for it on a full disk, too: what its stream should have had."""
    try:
        lines = input_file.read(run.path / "nodes" / str(node) / "last_words").splitlines()
    except OSError:
        return []
    return [record for line in lines if isinstance(record := events.record(line), Event)]


def last_words_time(run: Run, node: int) -> float | None:
    """When they were written; None where there are none."""
    try:
        return (run.path / "nodes" / str(node) / "last_words").stat().st_mtime
    except OSError:
        return None


def agent_stderr(run: Run, node: int, *, started: bool, count: int = 5) -> list[str]:
    """Why the agent died, if it could say so: the last lines of its own stderr.

    Once it had `started`, what is there may be a library's, of which it did not die: only an error of Python's counts.
    """
    lines: list[str] = []
    for path in (run.path / "nodes" / str(node) / "stderr", run.path / "job.out"):
        with suppress(OSError):
            said = input_file.end_of(path, 4096).decode(errors="replace").splitlines()
            own = started and path.name == "stderr"
            lines = lines or (next(([line] for line in said if line.startswith("Fatal Python error")), []) if own else said)
    return [line for line in lines if line.strip()][-count:]
