"""Text and tables about a run, for people."""

from __future__ import annotations

import os
import shlex
import time
from itertools import groupby
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent import failures
from launcher.agent.failures import Failure
from launcher.agent.system.folding import folded, ranges
from launcher.console import alike_rows, places, tables
from launcher.console.places import Place
from launcher.payload import scripts
from launcher.runs import status
from launcher.system import amounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from launcher.backends._plan import Plan, PlannedNode
    from launcher.payload.snapshot import Snapshot
    from launcher.results.files import Fetched
    from launcher.results.run import Cause, RunState
    from launcher.runs.records import Run

_ROWS_PER_HOST = 2
_PLACES = 4
"""So many hosts, or directories, are named."""


def heading(run: Run) -> str:
    """One line that names a starting run."""
    where = f"{run.backend}, cluster {run.cluster}" if run.cluster and run.backend else run.cluster or run.backend
    return f"{output.paint(run.id, 'bold')} on {where}{job(run)}"


def job(run: Run) -> str:
    """`, job 4711`; empty if the run has no job id, or one that contains its own id."""
    return f", job {run.job_id}" if run.job_id and run.id not in run.job_id else ""


def plan_table(plan: Plan, meeting: Mapping[str, Any] | None = None, hosts: Sequence[str] = ()) -> str:
    """Host, node rank and ranks of each node, and the master address. Many nodes share rows.

    `meeting`: `address`, `port` and `reason`, if they were chosen at the start. `hosts`: those chosen at the start.
    """
    master, planned = plan.master, next((node.host for node in plan.nodes if node.node_rank == 0), "")
    if hosts and planned:
        master = hosts[0] + master[len(planned) :] if master.startswith(planned) else master
    if meeting and meeting.get("reason"):
        master = f"{meeting.get('address') or 'several addresses'}:{meeting.get('port')} ({meeting['reason']})"

    def host_of(node: PlannedNode) -> str:
        return hosts[node.node_rank] if node.node_rank < len(hosts) else node.host

    rows: list[tuple[str, ...]] = []
    first, has_roles = 0, any(node.role for node in plan.nodes)
    started = plan.nodes[: len(hosts) or None]
    heads = ("HOST", "NODE", *(("ROLE",) if has_roles else ()), "RANKS", "MASTER")
    if len({host_of(node) for node in started}) > alike_rows.MANY:
        each = [Place(host_of(node), node.node_rank, ranks, node.role) for node, ranks in _ranked(started)]
        rows = [(*row, "" if number else master) for number, row in enumerate(places.rows(each))]
        return tables.table(heads, rows, output.STDERR)
    alike = groupby(started, key=lambda node: (host_of(node), node.role))
    for (host, _), grouped in alike:
        nodes = list(grouped)
        for part in [nodes] if len(nodes) > _ROWS_PER_HOST else [[node] for node in nodes]:
            counts = [node.workers for node in part]
            last = -1 if first < 0 or None in counts else first + sum(count or 0 for count in counts)
            ranks = "?" if last < 0 else ranks_text(range(first, last))
            where = ranks_text(tuple(node.node_rank for node in part))
            role = (part[0].role,) if has_roles else ()
            rows.append((host, where, *role, ranks, master if part[0].node_rank == 0 else ""))
            first = last
    return tables.table(heads, rows, output.STDERR)


def _ranked(nodes: Sequence[PlannedNode]) -> Iterator[tuple[PlannedNode, tuple[int, ...]]]:
    """Each node with its ranks, as far as they are known."""
    first: int | None = 0
    for node in nodes:
        last = None if first is None or node.workers is None else first + node.workers
        yield node, () if first is None or last is None else tuple(range(first, last))
        first = last


def ranks_text(ranks: Sequence[int]) -> str:
    """`0-3,7`."""
    return ranges(ranks) or "-"


def files(texts: Mapping[str, str]) -> str:
    """All rendered texts. A single one is left as it is, so that it can be redirected to a file."""
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "\n".join(f"# ---- {name} ----\n{text.rstrip()}\n" for name, text in texts.items())


def sent(snapshot: Snapshot | None, env: Mapping[str, str], secrets: Sequence[str]) -> str:
    """What is sent of the user's own: files with their sizes, and variables."""
    rows = [(name, value) for name, value in env.items()] + [(name, "(secret)") for name in secrets]
    text = tables.table(("VARIABLE", "VALUE"), rows, output.STDERR) if rows else ""
    if snapshot is None:
        return text
    files = [
        (file.path, amounts.size(file.size) if file.link is None else f"link to {file.link}") for file in snapshot.files
    ]
    whole = f"{amounts.counted(len(files), 'file')}, {amounts.size(snapshot.total_bytes)}, of {snapshot.directory}"
    return text + tables.table(("FILE", "SIZE"), [*files, (whole, "")], output.STDERR)


def closing(run: Run, state: RunState, took_s: float) -> list[str]:
    """The closing lines of a run: how it ended, why, and where its logs are."""
    if run.tasks:
        return [f"{state['state']} after {duration(took_s)}: {run.id}: {state['detail']}"]
    word = output.paint(state["state"], tables.STYLES.get(state["state"], "bold"))
    waited = f" ({text})" if (text := queued(state["queued_s"])) else ""
    took = f"{duration(took_s)}{waited}{restarts(state['restarts'], state['attempt'])}"
    lines = [f"{word} after {took}: {run.id}{job(run)}"]
    if state["cause"] is not None:
        lines += [f"  {line}" for line in cause_lines(state["cause"], run)]
    lines += [f"  {line}" for line in lost_lines([(node["node"], node["lines_lost"]) for node in state["nodes"]])]
    lines += [f"  outputs: {where}" for where in outputs(run, state)]
    lines.append(f"  logs: distlaunch logs {run.id}   directory: {run.path}")
    return lines


def outputs(run: Run, state: RunState) -> list[str]:
    """Where the workers' files are, if that is not the directory of the launch: a directory, and on which hosts."""
    if run.output_dir in (None, run.cwd):
        return []
    places: dict[str, list[str]] = {}
    for node in state["nodes"]:
        where = status.output_dir(run, state) if node["node"] == 0 else node.get("output_dir")
        if where is not None:
            places.setdefault(where, []).append(node["host"])
    lines = [f"{where} on {folded(hosts, _PLACES)}" for where, hosts in places.items()]
    more = [f"and {len(lines) - _PLACES} more directories (--output json)"] if len(lines) > _PLACES else []
    return lines[:_PLACES] + more


def fetched(result: Fetched) -> list[str]:
    """What was fetched, and what was left out."""
    files = result["files"]
    moved = [file for file in files if file["transferred"]]
    known = f", {len(files) - len(moved)} were here already" if len(moved) < len(files) else ""
    total = amounts.size(sum(file["bytes"] for file in moved))
    lines = [f"{amounts.counted(len(moved), 'file')} fetched to {result['to']} ({total}){known}"]
    return lines + [f"left out: {each['path']}: {each['why']}" for each in result["left_out"]]


def lost_lines(nodes: Sequence[tuple[object, object]]) -> list[str]:
    """A line for each node whose workers wrote lines that were not kept."""
    return [f"node {node}: {lost:,} lines were not kept" for node, lost in nodes if isinstance(lost, int) and lost]


def queued(seconds: object) -> str:
    """`12.0 s in the queue`; empty if that is unknown or less than a second."""
    return f"{duration(seconds)} in the queue" if isinstance(seconds, (int, float)) and seconds >= 1 else ""


def restarts(by_agents: int, by_scheduler: int) -> str:
    """`, 2 restarts, attempt 1`; empty if nothing was started again."""
    again = f", {amounts.counted(by_agents, 'restart')}" if by_agents else ""
    return again + (f", attempt {by_scheduler}" if by_scheduler else "")


def cause_lines(cause: Mapping[str, Any] | Cause, run: Run | None = None) -> list[str]:
    """The first failure: what, where, and the traceback. Empty for a cancelled run."""
    if cause.get("class") == Failure.CANCELLED:
        return []
    text = f"{failures.text(cause.get('class'))}: {cause.get('message')}"
    lines = [text] if cause.get("traceback") else text.split("\n")
    rank, node = cause.get("rank"), cause.get("node")
    of_nodes = run.plan.get("nodes", []) if run is not None else []
    role = of_nodes[node].get("role") if isinstance(node, int) and 0 <= node < len(of_nodes) else ""
    where = [f"rank {rank}"] if rank is not None else []
    where += [f"role {role}"] if role else []
    where += [f"host {cause['host']}"] if cause.get("host") else []
    where += [f"node {node}"] if node is not None else []
    ended = f"signal {cause['signal']}" if cause.get("signal") else None
    ended = f"exit code {cause['exit_code']}" if ended is None and cause.get("exit_code") is not None else ended
    if where:
        lines.append("first failure: " + ", ".join([*where, *([ended] if ended else [])]))
    if cause.get("traceback"):
        lines += str(cause["traceback"]).expandtabs(4).rstrip("\n").split("\n")
    elif cause.get("class") != Failure.KILLED and run is not None and isinstance(rank, int) and isinstance(node, int):
        said = status.last_lines(run.stream_path(node), rank)
        lines += ["its last lines on stderr:", *(f"  {line}" for line in said)] if said else []
    return lines


def missing_ranks(ranks: Iterable[int], world: int) -> str:
    """`log-ranks 4-7: the run has 4 ranks`, for wanted ranks that do not exist."""
    missing = tuple(sorted(rank for rank in ranks if rank >= world))
    return f"log-ranks {ranks_text(missing)}: the run has {amounts.counted(world, 'rank')}"


def duration(seconds: float) -> str:
    """`3.2 s`, `5 min 10 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, secs = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {secs} s"


def duration_or_none(seconds: object) -> str | None:
    """The duration as text; None if it is not known yet."""
    return duration(seconds) if isinstance(seconds, (int, float)) else None


def age(when: float | None) -> str:
    """How long ago, in one unit; `-` if unknown."""
    if not when:
        return "-"
    seconds = max(0.0, time.time() - when)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def command_line(command: tuple[str, ...]) -> str:
    """The command as a user would type it."""
    return shlex.join(command)


def short_command(command: tuple[str, ...], cwd: str = "") -> str:
    """The same, with a bundled script by its name, and one below the run's working directory relative to that."""
    script = command[0] if command else ""
    if scripts.is_bundled(script):
        script = os.path.basename(script)
    elif os.path.isabs(cwd) and script.startswith(os.path.join(cwd, "")):
        script = os.path.relpath(script, cwd)
    return command_line((script, *command[1:])) if command else ""


def state_text(state: str) -> str:
    """The state, in its colour if stdout is a terminal."""
    return output.paint(state, tables.STYLES.get(state, "bold"), output.STDOUT)
