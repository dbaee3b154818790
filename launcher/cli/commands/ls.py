"""`distlaunch ls`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

from launcher import output
from launcher.agent.system.folding import folded
from launcher.cli.parameters import OutputOption, argument, flag
from launcher.console import summary, tables
from launcher.errors import RequestError
from launcher.service import listing, observe
from launcher.service.selection import EVERY, Selection

if TYPE_CHECKING:
    from launcher.results.run import ClusterRun, ClusterRuns, Runs
    from launcher.results.warm import WarmServers

_HOSTS = 4


def ls(  # noqa: PLR0917 - one parameter for each option
    run: Annotated[Optional[str], argument(metavar="[RUN]", help="List the tasks of this job array.")] = None,
    limit: Annotated[int, flag("-n", "--limit", metavar="N", help="Show only the newest N; 0: all.")] = 0,
    state: Annotated[
        Optional[str], flag("--state", metavar="STATE,...", help="Show only runs in these states.")
    ] = None,
    since: Annotated[
        Optional[str],
        flag("--since", metavar="DURATION|DATE", help="Show only runs submitted since: 2h, 3d, 2026-11-20."),
    ] = None,
    name: Annotated[Optional[str], flag("--name", metavar="NAME", help="Show only runs of this name.")] = None,
    on: Annotated[
        Optional[str],
        flag("--on", metavar="NAME", help="Ask this cluster or backend; includes other users' runs."),
    ] = None,
    usage: Annotated[bool, flag("--usage", help="Show what each run has used: time, GPUs, CPUs, memory.")] = False,
    warm: Annotated[
        bool, flag("--warm", help="List what runs with --warm have left standing here, or --on a cluster, not runs.")
    ] = False,
    fmt: OutputOption = None,
) -> None:
    """List runs, newest last.

    $ distlaunch ls --state running,failed --since 2h
    $ distlaunch ls --on juno
    """
    directory = observe.directory(fmt)
    if warm:
        _standing(on)
        return
    selection = Selection.parse(state, since, name)
    if on is not None:
        if usage:
            raise RequestError(
                "--usage and --on exclude each other", hint="only runs that are here are known well enough"
            )
        _of_cluster(on, selection, limit)
        return
    found = listing.states(directory, run, limit, selection)
    data: Runs = {"runs": [listing.row(each, state, used=usage) for each, state in found]}
    if usage:
        output.result(data, *_usage(data))
        return
    rows = [
        (
            f"{each.id} [{len(each.tasks)}]" if each.tasks else each.id,
            state.get("state"),
            each.cluster or each.backend or None,
            each.nodes or None,
            summary.age(each.created),
            summary.short_command(each.command, each.cwd) or None,
        )
        for each, state in found
    ]
    text = tables.table(("RUN", "STATE", "ON", "NODES", "AGE", "COMMAND"), rows, cut=True) if rows else ""
    if not rows:
        output.note(f"no such run in {directory}" if selection != EVERY else f"no runs in {directory}")
    output.result(data, *text.splitlines())


def _standing(on: str | None) -> None:
    """List the fork servers that wait for the next run."""
    from launcher.console import live_line, warm_text  # few lists have it
    from launcher.service import warm

    with live_line.waiting(f"asking {on or 'this machine'} for what stands"):
        data: WarmServers = {"warm": warm.standing(on)}
    if not data["warm"]:
        output.note(f"nothing is left standing {f'on {on}' if on else 'here'}")
    output.result(data, *warm_text.lines(data["warm"]))


def _usage(data: Runs) -> list[str]:
    """A table of what the runs have used."""
    from launcher.console import usage_text  # few lists have it

    rows = [(each["run"], each["state"], *usage_text.row(each.get("usage"))) for each in data["runs"]]
    return tables.table(usage_text.HEADER, rows, cut=True).splitlines() if rows else []


def _of_cluster(name: str, selection: Selection, limit: int) -> None:
    """List the selected runs that the cluster reports."""
    from launcher.console import live_line
    from launcher.service import cluster  # a list of our own runs needs no backend

    with live_line.waiting(f"asking {name} for its runs"):
        every = cluster.found(name)
    selected = (run for run in every if selection.takes(run["run"], run["created"]))
    found = [run for run in selected if selection.takes_state(run["state"])][-limit if limit > 0 else 0 :]
    rows = [
        (
            run["run"],
            run["state"],
            run["user"],
            run["job_id"],
            run["nodes"] or None,
            _hosts(run),
            summary.age(run["created"]),
            summary.short_command(tuple(run["command"])) or None,
        )
        for run in found
    ]
    header = ("RUN", "STATE", "USER", "JOB", "NODES", "HOSTS", "AGE", "COMMAND")
    text = tables.table(header, rows, cut=True) if rows else ""
    if not rows:
        output.note(f"no such run on {name}" if selection != EVERY else f"no runs on {name}")
    data: ClusterRuns = {"runs": found}
    output.result(data, *text.splitlines())


def _hosts(run: ClusterRun) -> str | None:
    """The first hosts, with the run's GPUs there if that is known."""
    gpus = run.get("gpus", {})
    named = [
        f"{host} (GPU {summary.ranks_text(tuple(gpus[host]))})" if gpus.get(host) else host
        for host in run["hosts"]
        if host
    ]
    return folded(named, _HOSTS) or None
