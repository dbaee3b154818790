"""A run as a whole: its state, its history, what is worth knowing and its last lines, for `distlaunch report`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

from launcher import __version__
from launcher.console import summary
from launcher.errors import RequestError
from launcher.payload import credentials
from launcher.runs import sample_series
from launcher.service import link_findings, listing, observations, observe, reproduce, start_losses
from launcher.service.report_streams import ReportStreams

if TYPE_CHECKING:
    from launcher.results.report import Report
    from launcher.results.run import RunState
    from launcher.runs.records import Run


def make(run: Run) -> Report:
    """The report of a run of any backend, ended or not. Raises `RequestError` for a job array or a damaged run."""
    single(run)
    state = observe.state_of(run)
    read = ReportStreams(run, state)
    return of(run, state, read, read.read())


def single(run: Run) -> None:
    """Raises `RequestError` for what has no report: a job array, or a damaged run."""
    observe.whole(run)
    if run.tasks:
        raise RequestError(f"{run.id} is a job array", hint=f"distlaunch report {run.id}/{run.tasks[0]}")


def of(run: Run, state: RunState, read: ReportStreams, trouble: str) -> Report:
    """The report by a state and what was read of the streams. `trouble`: why not all of them could be read, if so."""
    now, whole = time.time(), listing.whole(run, state)
    end = now if state["exit_code"] is None else max((node["last_seen"] or 0.0 for node in state["nodes"]), default=now)
    starts, measured, taken = read.history.starts(), read.samples(), read.stacks.found()
    series = sample_series.series(measured)
    lines, hidden = read.logs(state)
    hosts = read.hosts(state)
    silent = "" if trouble else read.silent()
    missing = [trouble, f"{silent}: nothing has been received" if silent else ""]
    found = [
        *observations.of_hangs(taken),
        *observations.of_recorders(read.recorders),
        *link_findings.observed(measured, hosts),
        *observations.of_run(state, series, whole["findings"]),
        *read.network.observed(hosts),
        *start_losses.observed(starts),
    ]
    if hidden:
        missing.append(f"the lines of {hidden} more ranks: distlaunch logs --rank N {run.id}")
    return cast(
        "Report",
        {
            **whole,
            "command": credentials.masked_command(run.command),
            "made": round(now, 3),
            "launcher_version": __version__,
            "verdict": verdict(state),
            "explanation": summary.cause_lines(state["cause"], run) if state["cause"] else [],
            "observations": sorted(found, key=lambda each: each["level"] != "problem"),
            "startup": start_losses.startup(starts),
            "rounds": read.history.rounds(end),
            "moments": read.history.moments(),
            "samples": series,
            "progress_curves": sample_series.progress(measured),
            "stacks": taken,
            "missing": [each for each in missing if each],
            "logs": lines,
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
