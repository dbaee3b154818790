"""`distlaunch doctor BACKEND|--on CLUSTER`: a short job on the nodes, whose reports are compared with one another."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher import backends, config, examine, findings, heat_map, names, output, quarantine, runs, storage, summary
from launcher.cli import _launch
from launcher.cli._parameters import PlainCommand, from_fields, keyword
from launcher.cli._request import resolve
from launcher.errors import RequestError, SpecError, StorageError
from launcher.options import option
from launcher.reader import StreamReader
from launcher.reports import Reports

if TYPE_CHECKING:
    from launcher.cli._request import Request
    from launcher.findings import Finding
    from launcher.heat_map import Pairs
    from launcher.outcome import Outcome
    from launcher.runs import Run

CONTEXT_SETTINGS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}
"""All words are read by the command of the backend that the first one, or --on, names."""

_COLLECT_S = 15.0
_PICTURE = "links.svg"
_NOT_OURS: tuple[str, ...] = (
    "script",
    "args",
    "name",
    "secret",
    "ship_secrets",
    "start",
    "preload",
    "max_restarts",
    "grace",
    "no_python",
)
_NOT_OURS += ("module", "detach", "explain", "log_ranks", "runs_dir", "array", "max_requeues", "dependency", "server_dry_run")
"""Options of jobs that mean nothing for this one."""

_MARKS = {"ok": "OK", "warn": "warn", "fail": "FAIL"}
_STYLES = {"OK": "green", "warn": "yellow", "FAIL": "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """What doctor itself takes; the rest are the job's and the backend's options."""

    seconds: float = option(5.0, metavar="S", help="Seconds of arithmetic on each GPU or processor.")
    quarantine: bool = option(False, flags=("--quarantine",), help="Later runs on this cluster leave hosts that failed out.")
    release: tuple[str, ...] = option((), metavar="HOST", help="Take a host off that list; examines nothing.")


def doctor(ctx: typer.Context) -> int:
    """Examine a cluster's nodes: versions, clocks, disks, limits, network, GPUs, speed, links."""
    words = list(ctx.args)
    asks = not words or "--help" in words
    name = words.pop(0) if words and words[0] in backends.names() else None
    named = any(word == "--on" or word.startswith("--on=") for word in words)
    if name is None and not named and not asks:
        hint = names.hint(words[0], backends.names(), "a backend comes first") + "; or --on CLUSTER"
        raise RequestError(f"doctor {words[0]}: where?", hint=hint)
    _check_release(words)
    command = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    cluster = Annotated[str | None, typer.Option("--on", metavar="NAME", help="Take settings from [clusters.NAME].")]
    more = [
        keyword("on", cluster, None),
        *from_fields(DoctorOptions),
        *(from_fields(backends.load(name).options) if name else []),
    ]
    function = _launch.launching(str(doctor.__doc__), lambda values: _examine(name, values), more, leave_out=_NOT_OURS)
    command.command(cls=PlainCommand)(function)
    prog = f"distlaunch doctor {name or ('--on CLUSTER' if named else 'BACKEND')}"
    with typer.main.get_command(command).make_context(prog, ["--help"] if asks else words) as inner:
        return int(inner.command.invoke(inner) or 0)


def _check_release(words: list[str]) -> None:
    """Say which hosts there are where `--release` came without one."""
    following = dict(zip(words, [*words, "-"][1:], strict=True))
    if following.get("--release", "HOST").startswith("-"):
        listed = ", ".join(quarantine.hosts(following.get("--on", ""), os.environ))
        hint = f"in quarantine: {listed}" if listed else "distlaunch doctor --on CLUSTER --release HOST"
        raise SpecError("--release: which host?", hint=hint)


def _examine(name: str | None, values: dict[str, Any]) -> int:
    """Run the job, collect what its nodes say, compare, print; 1 where a check failed."""
    own = DoctorOptions(**{item.name: values[item.name] for item in fields(DoctorOptions) if values.get(item.name) is not None})
    values = {**values, "cluster": values["on"], "env": [*(values["env"] or []), "DISTLAUNCH_FACTS=full"]}
    values |= {"script": "doctor.py", "args": ["--seconds", f"{own.seconds:g}"]}
    if own.release:
        return _release(values["cluster"], tuple(own.release))
    request = replace(resolve(name, values), ranks=frozenset())
    if own.quarantine and not request.cluster:
        raise SpecError("--quarantine needs a cluster to keep the list for", hint="distlaunch doctor --on CLUSTER --quarantine")
    if own.quarantine and not any(item.name == "exclude" for item in fields(request.backend.options)):
        raise SpecError(f"--quarantine: a cluster with the backend {request.backend_name} has no hosts that could be left out")
    ran = _run(request)
    if ran is None:
        return 0
    run, outcome = ran
    exit_code = outcome.exit_code if outcome.exit_code is not None else 4
    reports, facts = _collect(request, run)
    found = [*examine.examine(reports, facts), *([] if reports else examine.meeting(outcome.cause))]
    hosts = _names(run, outcome)
    silent = sorted(set(range(len(run.hosts))) - {report["node"] for report in reports})
    if own.quarantine:
        bad = _to_leave_out(found, examine.lasting(reports, facts), hosts, silent)
        quarantine.add(str(request.cluster), bad, os.environ)
    first = {report["node"]: report for report in reports if report["local_rank"] == 0}
    marks = {
        (node, check): _mark(found, node, check, seen=findings.seen(check, first.get(node), facts.get(node)))
        for node in hosts
        for check in findings.CHECKS
    }
    rows = [(host, node, *(marks[node, check] for check in findings.CHECKS)) for node, host in sorted(hosts.items())]
    table = output.table(("HOST", "NODE", *(check.upper() for check in findings.CHECKS)), rows)
    failed = bool(silent) or exit_code != 0 or findings.worst(found) == "fail"
    pairs = heat_map.of_nodes(reports, hosts)
    if pairs:
        try:
            storage.write_whole(run.path / _PICTURE, heat_map.svg(pairs, f"{run.id}: pairs of nodes").encode())
        except StorageError as error:
            output.warn(error.message)
    _show(run, hosts, silent, found, pairs, table=table.rstrip("\n"), ok=not failed)
    return exit_code if exit_code not in (0, 1) else int(failed)


def _to_leave_out(found: list[Finding], sure: set[tuple[int, str]], hosts: dict[int, str], silent: list[int]) -> dict[str, str]:
    """Hosts that later runs are to leave out, and why. A name that two nodes have may be the other's."""
    known = Counter(hosts.values())
    bad = [f for f in found if f.status == "fail" and (f.node, f.check) in sure and f.node not in silent]
    return {hosts[f.node]: f"{f.check}: {f.reason}" for f in bad if known[hosts[f.node]] == 1}


def _names(run: Run, outcome: Outcome) -> dict[int, str]:
    """What the backend calls each node's host: as it was chosen at the start, else as its agent says."""
    told = {node.node: node.host for node in outcome.nodes}
    return told | (dict(enumerate(run.hosts)) if isinstance((run.handle or {}).get("hosts"), list) else {})


def _release(cluster: str | None, hosts: tuple[str, ...]) -> int:
    if not cluster:
        raise SpecError("--release needs the cluster whose list it is", hint="distlaunch doctor --on CLUSTER --release HOST")
    config.load().cluster(cluster, lambda name: backends.load(name).options)
    if unknown := [host for host in hosts if host not in quarantine.hosts(cluster, os.environ)]:
        listed = ", ".join(quarantine.hosts(cluster, os.environ)) or "no host"
        raise SpecError(f"{unknown[0]} is not in {cluster}'s quarantine", hint=f"in it: {listed}")
    quarantine.release(cluster, hosts, os.environ)
    left = quarantine.hosts(cluster, os.environ)
    output.result({"cluster": cluster, "quarantined": left}, f"left out of {cluster}: {', '.join(left) or 'no host'}")
    return 0


def _run(request: Request) -> tuple[Run, Outcome] | None:
    """Send the job and follow it to its end; None where nothing was sent (--dry-run)."""
    from launcher.follow import Follower
    from launcher.interrupts import Interrupts

    path = runs.root(request.runs_root) / runs.new_id(request.job.name)
    plan = request.plan(path)
    if request.options.dry_run or request.options.render_to:
        _launch._render(request, plan)
        return None
    run = _launch._run(request, plan, path)
    with Interrupts() as interrupts:
        runs.create(run)
        run = _launch._submit(request.backend, plan, run, interrupts)
        output.note(f"{summary.heading(run)}: examining {len(plan.nodes)} node{'s' * (len(plan.nodes) > 1)}")
        outcome = Follower(run, request.backend, ranks=request.ranks, interrupts=interrupts).follow()
    if outcome.state != "success":
        output.warn(f"the job did not end well: {(outcome.cause or {}).get('message') or outcome.state}")
    return run, outcome


def _collect(request: Request, run: Run) -> tuple[list[dict[str, Any]], dict[int, dict[str, Any]]]:
    """What the streams hold, from their start."""
    stream = request.backend.open_stream(run.handle or {})
    readers = {node: StreamReader(None, node) for node in range(len(run.hosts))}
    found = Reports(len(run.hosts))
    limit = time.monotonic() + _COLLECT_S
    try:
        while found.done < len(run.hosts) and time.monotonic() < limit:
            for chunk in stream.read(0.5):
                for record in readers[chunk.node].feed(chunk.data):
                    found.take(chunk.node, record)
    finally:
        stream.close()
    for rank, nodes in list(found.claimed_twice.items())[:1]:
        output.warn(f"nodes {' and '.join(map(str, nodes))} say that they have the same rank {rank}: no report of theirs counts")
    return found.reports, found.facts


def _show(
    run: Run, hosts: dict[int, str], silent: list[int], found: list[Finding], pairs: Pairs | None, *, table: str, ok: bool
) -> None:
    """The table, then what is wrong with the way out, then the pairs."""
    text = table.splitlines()
    for finding in sorted(found, key=lambda f: (f.status != "fail", f.node)):
        mark = output.paint(_MARKS[finding.status], _STYLES[_MARKS[finding.status]], output.STDOUT)
        text += [f"{mark}  {hosts[finding.node]}: {finding.check}: {finding.reason}", f"      {finding.fix}"]
    text += [f"FAIL  {hosts[node]}: no report came from it: distlaunch logs {run.id} --node {node}" for node in silent]
    if pairs:
        text += ["", *heat_map.terminal(pairs).splitlines(), "", f"as a picture: {run.path / _PICTURE}"]
    data: dict[str, Any] = {
        "run": run.id,
        "nodes": [{"node": node, "host": host, "reported": node not in silent} for node, host in sorted(hosts.items())],
        "findings": [{"host": hosts[f.node], **{key.name: getattr(f, key.name) for key in fields(f)}} for f in found],
    }
    data |= {"links": asdict(pairs) if pairs else None, "ok": ok}
    output.result(data, *text)


def _mark(found: list[Finding], node: int, check: str, *, seen: bool) -> str:
    own = [finding for finding in found if finding.node == node and finding.check == check]
    return _MARKS[findings.worst(own)] if own or seen else "-"
