"""The metrics of runs, from their directories and, for their states, their clusters."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, get_args

from launcher.agent.failures import ENDS
from launcher.agent.protocol import Event
from launcher.errors import StorageError
from launcher.results.run import State
from launcher.runs import directories, phases, samples, status
from launcher.runs.metrics import Page
from launcher.service import listing, observe

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.results.run import RunState, Status
    from launcher.runs.records import Run
    from launcher.runs.samples import NodeSample

AFTER_END_S = 3600.0
"""For this time after its end, `metrics` without a run has the run."""

_LOOKED_AT = 500
_STATES = (*get_args(get_args(State)[0]), *map(str, ENDS))


def recent(directory: Path) -> list[tuple[Run, RunState]]:
    """The runs that have not ended, or not long ago, of the newest ones; oldest first."""
    found: list[tuple[Run, RunState]] = []
    for count, run in enumerate(directories.newest_first(directory, directories.ids(directory))):
        if count == _LOOKED_AT:
            break
        state = observe.state_of(run)
        if state["exit_code"] is None or time.time() - _ended(run, state) < AFTER_END_S:
            found.append((run, state))
    return found[::-1]


def _ended(run: Run, state: RunState) -> float:
    """When it ended, or that was found: of nodes that never started, and of arrays, nothing was heard."""
    known = [node["last_seen"] for node in state["nodes"] if node["last_seen"]]
    with suppress(OSError):
        known.append(run.result_path.stat().st_mtime)
    return max(known, default=run.created or 0.0)


def page(runs: list[tuple[Run, RunState]]) -> Page:
    """The metrics of these runs."""
    made = Page()
    for run, state in runs:
        _of_run(made, run, listing.whole(run, state))
        with suppress(StorageError):
            for node in range(len(run.hosts)):
                _of_node(made, run, state, node)
    return made


def _of_run(made: Page, run: Run, state: Status) -> None:
    about = {
        "backend": run.backend,
        "cluster": run.cluster or "",
        "name": directories.name_of(run.id.partition("/")[0]),
    }
    made.add("run_info", 1, run=run.id, **about, job_id=run.job_id or "")
    for each in _STATES:
        made.add("run_state", each == str(state["state"]), run=run.id, state=each)
    made.add("run_created_timestamp_seconds", run.created or None, run=run.id)
    made.add("run_queued_seconds", state["queued_s"], run=run.id)
    with suppress(StorageError):
        for phase, seconds in (phases.of(run) if run.hosts and not run.tasks else {}).items():
            made.add("run_startup_seconds", seconds, run=run.id, phase=phase)
    made.add("run_attempt", state["attempt"], run=run.id)
    made.add("run_restarts", state["restarts"], run=run.id)
    made.add("run_exit_code", state["exit_code"], run=run.id)
    made.add("run_findings", len(state["findings"]), run=run.id)
    made.add("run_hangs", any(each["kind"] == "hang" for each in state["findings"]), run=run.id)
    _of_usage(made, run.id, state)
    if (told := state["progress"]) is not None:
        made.add("run_step", told["step"], run=run.id)
        made.add("run_steps", told["steps"], run=run.id)
        made.add("run_steps_per_second", told["rate"], run=run.id)
        made.add("run_loss", told["loss"], run=run.id)
        made.add("run_eta_seconds", told["eta_s"], run=run.id)


def _of_usage(made: Page, run: str, state: Status) -> None:
    if (used := state["usage"]) is None:
        return
    if used["whole"]:  # otherwise these counters would fall once a stream is long
        made.add("run_lost_seconds", used["lost_s"], run=run)
    if used["whole"] or not state["attempt"]:
        made.add("run_held_seconds", used["ran_s"], run=run)
        made.add("run_gpu_seconds", _times(used["gpu_hours"], 3600), run=run)
    made.add("run_gpus", used["gpus"], run=run)
    made.add("run_gpu_use_ratio", _times(used["gpu_use"], 0.01), run=run)
    made.add("run_cpus", used["cpus"], run=run)
    made.add("run_cpu_use_ratio", _times(used["cpu_use"], 0.01), run=run)
    made.add("run_memory_peak_bytes", used["memory_peak_bytes"], run=run)


def _of_node(made: Page, run: Run, state: RunState, node: int) -> None:
    known = state["nodes"][node] if node < len(state["nodes"]) else None
    where = {"run": run.id, "node": node, "host": known["host"] if known else run.hosts[node]}
    if known:
        made.add("node_last_seen_timestamp_seconds", known["last_seen"], **where)
        made.add("node_workers", known["workers"], **where)
        made.add("node_lost_lines", known["lines_lost"], **where)
    ended = state["exit_code"] is not None
    events = () if ended else (each for each in status.ends(run.stream_path(node)) if isinstance(each, Event))
    if (now := samples.latest(events)) is not None:
        _of_sample(made, now, where)


def _of_sample(made: Page, now: NodeSample, where: dict[str, object]) -> None:
    """What a node and its ranks use now; of a run that has ended, there is nothing."""
    made.add("node_cpu_busy", now.cpu, **where)
    made.add("node_cpus", now.cpus, **where)
    made.add("node_memory_bytes", now.memory_bytes, **where)
    made.add("node_memory_total_bytes", now.memory_total_bytes, **where)
    made.add("node_received_bytes_per_second", now.received, **where)
    made.add("node_sent_bytes_per_second", now.sent, **where)
    made.add("node_rdma_received_bytes_per_second", now.rdma_received, **where)
    made.add("node_rdma_sent_bytes_per_second", now.rdma_sent, **where)
    for index, gpu in enumerate(now.gpus):
        made.add("gpu_use_ratio", _times(gpu.use, 0.01), **where, gpu=index)
        made.add("gpu_memory_bytes", gpu.memory_bytes, **where, gpu=index)
        made.add("gpu_memory_total_bytes", gpu.memory_total_bytes, **where, gpu=index)
        made.add("gpu_power_watts", gpu.power_w, **where, gpu=index)
    for rank in now.ranks:
        made.add("rank_cpu_busy", rank.cpu, **where, rank=rank.rank)
        made.add("rank_memory_bytes", rank.memory_bytes, **where, rank=rank.rank)
        made.add("rank_lines", rank.lines, **where, rank=rank.rank)
        made.add("rank_step", rank.step, **where, rank=rank.rank)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
