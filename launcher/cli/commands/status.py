"""`distlaunch status RUN`."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from launcher import output
from launcher.cli.parameters import OnOption, OutputOption, RunArgument, flag
from launcher.console import live_line, node_table, progress_text, race_table, summary, tables, usage_text
from launcher.errors import RunContinuesError
from launcher.service import finding, listing, observe

if TYPE_CHECKING:
    from launcher.results.run import Status
    from launcher.runs.records import Run

_FINDINGS = 5


def status(  # noqa: PLR0917 - one per option
    run: RunArgument,
    exit_code: Annotated[
        bool, flag("--exit-code", help="Exit with the run's exit code; 5 if it has not ended.")
    ] = False,
    verbose: Annotated[
        bool, flag("-v", "--verbose", help="Also print when a run on several clusters was expected to start.")
    ] = False,
    whole: Annotated[bool, flag("--all", help="Print all nodes, also of a run with more than 32.")] = False,
    on: OnOption = None,
    fmt: OutputOption = None,
) -> int:
    """Print a run's state, node by node.

    $ distlaunch status last
    $ distlaunch status --output json train-20250101-120000-abcd
    """
    found = finding.find(observe.directory(fmt), run, on)
    with live_line.waiting(f"asking {found.backend or found.cluster} for {found.id}"):
        state = observe.state_of(found)
        all_of_it = listing.whole(found, state)
    with suppress(output.StdoutClosedError):  # the exit code is what counts
        output.result(all_of_it, *_lines(found, all_of_it, whole=whole, verbose=verbose))
    code = state["exit_code"]
    return (RunContinuesError.exit_code if code is None else code) if exit_code else 0


def _when(created: float) -> str:
    return (
        f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(created))} ({summary.age(created)} ago)"
        if created
        else "-"
    )


def _lines(run: Run, state: Status, *, whole: bool, verbose: bool) -> list[str]:
    detail = f" ({state['detail']})" if state.get("detail") else ""
    lines = [
        f"run      {run.id}",
        f"state    {summary.state_text(str(state.get('state')))}{detail}",
        "on       " + ", cluster ".join(filter(None, (run.backend, run.cluster))),
        *([f"job      {run.job_id}"] if run.job_id else []),
        f"command  {summary.command_line(run.command) or '-'}",
        f"created  {_when(run.created)}",
    ]
    if isinstance(took := state.get("duration_s"), (int, float)):
        again = summary.restarts(state.get("restarts") or 0, state.get("attempt") or 0)
        lines.append(f"took     {summary.duration(took)}{again}")
        if waited := summary.queued(state.get("queued_s")):
            lines[-1] += f", after {waited}"
    if state["progress"] is not None:
        lines.append(f"progress {progress_text.line(state['progress'])}")
    lines += [f"odd      {progress_text.finding(one)}" for one in state["findings"][:_FINDINGS]]
    if state["usage"] is not None:
        lines.append(f"used     {usage_text.line(state['usage'])}")
    lines += [f"link     {link}" for link in state["links"]]
    lines.append(f"path     {run.path}")
    lines += [f"outputs  {where}" for where in summary.outputs(run, state)]
    if isinstance(cause := state.get("cause"), dict):
        told = summary.cause_lines(cause, run)
        lines += ["", *(f"  {line}" for line in told)] if told else []
    if (race := run.won or run.race) is not None:
        lines += ["", *race_table.lines(race, verbose=verbose)]
    tasks = [task for task in state.get("tasks") or () if isinstance(task, dict)]
    if tasks:
        each = [(task["run"], task["state"], summary.duration_or_none(task.get("duration_s"))) for task in tasks]
        lines += ["", *tables.table(("TASK", "STATE", "TOOK"), each).splitlines()]
    nodes = [node for node in state.get("nodes") or () if isinstance(node, dict)]
    return lines + node_table.lines(nodes, whole=whole)
