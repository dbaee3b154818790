"""`distlaunch ls`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

from launcher import output
from launcher.cli.parameters import OutputOption, argument, flag
from launcher.console import summary, tables
from launcher.service import listing, observe

if TYPE_CHECKING:
    from launcher.results.run import ClusterRun, ClusterRuns, Runs

_HOSTS = 4


def ls(
    run: Annotated[Optional[str], argument(metavar="[RUN]", help="List the tasks of this job array.")] = None,
    limit: Annotated[int, flag("-n", "--limit", metavar="N", help="Show only the newest N; 0: all.")] = 0,
    on: Annotated[
        Optional[str],
        flag("--on", metavar="NAME", help="Ask this cluster or backend; includes other users' runs."),
    ] = None,
    fmt: OutputOption = None,
) -> None:
    """List runs, newest last.

    $ distlaunch ls --limit 10
    $ distlaunch ls --on juno
    """
    directory = observe.directory(fmt)
    if on is not None:
        _of_cluster(on)
        return
    found = listing.states(directory, run, limit)
    data: Runs = {"runs": [listing.row(each, state) for each, state in found]}
    rows = [
        (
            f"{each.id} [{len(each.tasks)}]" if each.tasks else each.id,
            state.get("state"),
            each.cluster or each.backend or None,
            each.nodes or None,
            summary.age(each.created),
            summary.command_line(each.command)[:60] or None,
        )
        for each, state in found
    ]
    text = tables.table(("RUN", "STATE", "ON", "NODES", "AGE", "COMMAND"), rows) if rows else ""
    if not rows:
        output.note(f"no runs in {directory}")
    output.result(data, *text.splitlines())


def _of_cluster(name: str) -> None:
    """List the runs that the cluster reports."""
    from launcher.console import live_line
    from launcher.service import cluster  # a list of our own runs needs no backend

    with live_line.waiting(f"asking {name} for its runs"):
        found = cluster.found(name)
    rows = [
        (
            run["run"],
            run["state"],
            run["user"],
            run["job_id"],
            run["nodes"] or None,
            _hosts(run),
            summary.age(run["created"]),
            summary.command_line(tuple(run["command"])) or None,
        )
        for run in found
    ]
    text = tables.table(("RUN", "STATE", "USER", "JOB", "NODES", "HOSTS", "AGE", "COMMAND"), rows) if rows else ""
    if not rows:
        output.note(f"no runs on {name}")
    data: ClusterRuns = {"runs": found}
    output.result(data, *text.splitlines())


def _hosts(run: ClusterRun) -> str | None:
    """The first hosts, with the run's GPUs there if that is known."""
    gpus = run.get("gpus", {})
    named = [
        f"{host} (GPU {summary.ranks_text(tuple(gpus[host]))})" if gpus.get(host) else host for host in run["hosts"]
    ]
    more = f" and {len(named) - _HOSTS} more" if len(named) > _HOSTS else ""
    return ", ".join(named[:_HOSTS]) + more or None
