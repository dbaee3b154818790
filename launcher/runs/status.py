"""The current state of a run, from both ends of its streams: long streams are never read in full."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from launcher.agent.protocol import Event, Foreign, Output
from launcher.errors import StorageError
from launcher.runs import events, lock, records, restarts, unread
from launcher.runs.outcome import EXIT_CODES, Outcome, RunReport
from launcher.system import input_file, storage
from launcher.system.dataclass import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from launcher.agent.protocol import Record
    from launcher.results.run import RunState, State
    from launcher.runs.liveness import Liveness
    from launcher.runs.records import Run

END_BYTES = 128 * 1024
"""How much is read at each end of a stream: the first events are at its head, `done` is its last line."""

STREAM_DELAY_S = 60.0
"""How long a network file system takes at most to show what another host appended."""

SUBMISSION_S = 60.0
"""How long a run without a handle or a lock counts as about to be submitted."""

NOTHING_SENT = "its launcher ended before the run was submitted"
_PARTLY_SENT = "its launcher ended while it submitted the run, which may lack nodes"


def unsure(run: Run) -> str:
    """Why a failed submission may have left something; empty if its launcher recorded no reason."""
    left = run.known.get("submitting")
    return left if isinstance(left, str) else ""


def nothing_found(run: Run) -> str:
    """The message for a run of which nothing exists."""
    why = unsure(run)
    return f"nothing of it exists now, but something may still start: {why}" if why else NOTHING_SENT


def partly_sent(run: Run) -> str:
    """The message for a run whose submission is incomplete, and of which something exists."""
    why = unsure(run)
    return f"its submission failed, and what exists may lack nodes: {why}" if why else _PARTLY_SENT


def report_of(run: Run) -> RunReport:
    """An empty report for that run."""
    report = RunReport(run.hosts, min_nodes=run.min_nodes, may_start_again=run.may_start_again, attempt=run.attempt)
    report.queued_since, report.may_fail, report.elastic = run.queued_since, run.may_fail, run.elastic
    return report


def observe(run: Run, liveness: Liveness | None = None) -> Outcome:
    """The outcome by the streams in the run's directory and the backend's state of each node.

    A final outcome is recorded in the run's directory. A run that another process starts again is pending.
    """
    report = report_of(run)
    alive = liveness.nodes if liveness else ()
    for node in report.nodes:
        path = run.stream_path(node.node)
        for record in ends(path):
            node.add(record)
        with suppress(OSError):
            # Much worker output pushes the last heartbeat out of the part that is read.
            node.last_seen = max(node.last_seen or 0.0, round(path.stat().st_mtime, 3))
        if node.result is None:
            for event in last_words(run, node.node):
                node.add(event)
        if node.result is None and node.node < len(alive) and alive[node.node] == "ended":
            node.last_words.extend(agent_stderr(run, node.node, started=node.started is not None))
    told = liveness.told if liveness else {}
    outcome = unread.added_to(report, liveness).outcome(alive, cancel_requested=run.cancel_requested, **told)
    if why := restarts.expected(run, outcome):
        return replace(outcome, state="pending", detail=why)
    if outcome.final and _settled(outcome):
        with suppress(StorageError):
            records.finish(run, outcome.to_json())
    return outcome


def output_dir(run: Run, state: RunState) -> str | None:
    """Where the first node's files are, by its own word once it has started; None before it is known."""
    told = next((node.get("output_dir") for node in state["nodes"] if node["node"] == 0), None)
    return told or run.output_dir if run.output_dir is not None else None


def _settled(outcome: Outcome) -> bool:
    """Whether no missing `done` event can merely be late, as on a network file system."""
    late = time.time() - STREAM_DELAY_S
    return all(node.result is not None or (node.last_seen or 0.0) < late for node in outcome.nodes)


def current(run: Run) -> RunState | None:
    """The state, if the directory alone determines it; None if the backend has to be asked."""
    if run.damaged:
        return _nothing("unknown", run.damaged)
    if (result := run.result) is not None and result.get("state") in EXIT_CODES:
        why = "" if result["state"] == "success" else restarts.moving(run)
        return _nothing("pending", why) if why else ended(result)
    return None if run.submitted else _unsubmitted(run)


def ended(result: Mapping[str, Any]) -> RunState:
    """The content of a `result.json`, with defaults for fields that an earlier version did not write."""
    return cast("RunState", {**_nothing("unknown"), **result})


def _nothing(state: State, detail: str = "") -> RunState:
    from launcher.results.run import nothing  # a launch does not need it

    return nothing(state, detail)


def _unsubmitted(run: Run) -> RunState | None:
    """The state of a run that is being submitted, or never began to be; None if its launcher died on the way."""
    owner = lock.owner(run.whole_path)
    lives = owner is not None and owner.submits and not owner.seems_gone
    if run.race is not None and run.handle is None:
        where = ", ".join(each["cluster"] for each in run.race["tries"]) or run.cluster
        who = str(owner) if lives else f"no launcher: distlaunch attach {run.id}"
        return _nothing("pending", f"queued on {where}; who gets it is decided by {run.race['claim'] or who}")
    if lives:
        return _nothing("pending", f"being submitted by {owner}")
    if run.handle is not None:
        return None
    young = owner is None and time.time() - run.created < SUBMISSION_S
    return _nothing("pending", "being submitted") if young else _nothing("unknown", NOTHING_SENT)


def ends(path: Path, size: int | None = None) -> Iterator[Record]:
    """Events and foreign lines at the head and tail of a stream, or of its first `size` bytes; none without one."""
    for part in parts(path, size):
        for line in part.split(b"\n")[:-1]:
            record = events.record(line)
            if isinstance(record, (Event, Foreign)):
                yield record


def parts(path: Path, size: int | None = None) -> list[bytes]:
    """The head and the tail of a stream, which begins with a line; one part if it is short, none without one."""
    found: list[bytes] = []
    with storage.read_errors(path), suppress(FileNotFoundError), input_file.open_file(path) as file:
        size = file.seek(0, os.SEEK_END) if size is None else size
        file.seek(0)
        found = [file.read(size if size <= 2 * END_BYTES else END_BYTES)]
        if size > 2 * END_BYTES:
            file.seek(size - END_BYTES)
            found.append(file.read(END_BYTES).partition(b"\n")[2])
    return found


def last_lines(path: Path, rank: int, count: int = 10) -> list[str]:
    """The last lines that a rank wrote to stderr: the best explanation if there is no Python traceback."""
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
    """Events that belong in an agent's stream, from a file that has room even on a full disk."""
    try:
        lines = input_file.read(run.written / "nodes" / str(node) / "last_words").splitlines()
    except OSError:
        return []
    return [record for line in lines if isinstance(record := events.record(line), Event)]


def last_words_time(run: Run, node: int) -> float | None:
    """When these events were written; None if there are none."""
    try:
        return (run.written / "nodes" / str(node) / "last_words").stat().st_mtime
    except OSError:
        return None


def agent_stderr(run: Run, node: int, *, started: bool, count: int = 5) -> list[str]:
    """Why the agent died, if known: the last lines of its own stderr.

    Once it has `started`, its stderr may hold harmless output of libraries, so only a fatal error of Python counts.
    """
    lines: list[str] = []
    for path in (run.written / "nodes" / str(node) / "stderr", run.written / "job.out"):
        with suppress(OSError):
            said = input_file.end_of(path, 4096).decode(errors="replace").splitlines()
            own = started and path.name == "stderr"
            lines = lines or (
                next(([line] for line in said if line.startswith("Fatal Python error")), []) if own else said
            )
    return [line for line in lines if line.strip()][-count:]
