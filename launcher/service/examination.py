"""Run a short job on a cluster's nodes, and compare the nodes' reports."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from launcher import backends, output
from launcher.agent.system.folding import folded
from launcher.console import summary
from launcher.doctor import checks, examine, findings, heat_map
from launcher.doctor.findings import Finding
from launcher.doctor.reports import Reports
from launcher.errors import LaunchError, SpecError, StorageError
from launcher.runs.reader import StreamReader
from launcher.service import bringing, launch
from launcher.service.request import resolve
from launcher.settings import config, quarantine, verdicts
from launcher.system import amounts, storage
from launcher.system.dataclass import dataclass, fields, replace

if TYPE_CHECKING:
    from launcher.doctor.heat_map import Pairs
    from launcher.results import cluster as results
    from launcher.results.cluster import Examined, ExaminedNode, Links
    from launcher.runs.outcome import Outcome
    from launcher.runs.records import Run
    from launcher.service.interrupts import Interrupts, Unattended
    from launcher.service.request import Request

IGNORED = frozenset(
    {
        *("name", "workers", "claim", "claim_wait", "max_restarts", "hang_after", "on_hang", "warm", "no_python"),
        *("contract", "ps", "tracking", "notify", "notify_secret", "stragglers", "fetch", "fetch_node"),
        *("array", "max_requeues", "dependency"),
    }
)
"""Options that are those of the user's jobs: doctor's has none of them, whatever the settings say."""

PICTURE = "links.svg"
_COLLECT_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """The result of the job."""

    run: Run
    hosts: dict[int, str]
    """Host of each node, as the backend names it."""

    silent: list[int]
    """Nodes that have reported nothing."""

    found: list[Finding]
    seen: set[tuple[int, str]]
    """Pairs of a node and a check that could be made there."""

    pairs: Pairs | None
    exit_code: int

    @property
    def ok(self) -> bool:
        """Whether nothing has failed."""
        return not self.silent and self.exit_code == 0 and findings.worst(self.found) != "fail"

    def to_json(self) -> Examined:
        """Plain JSON."""
        nodes: list[ExaminedNode] = [
            {"node": node, "host": host, "reported": node not in self.silent}
            for node, host in sorted(self.hosts.items())
        ]
        told: list[results.Finding] = [
            {
                "host": self.hosts[f.node],
                "node": f.node,
                "check": f.check,
                "status": f.status,
                "reason": f.reason,
                "fix": f.fix,
            }
            for f in self.found
        ]
        links: Links | None = None
        if (pairs := self.pairs) is not None:
            links = {"names": pairs.names, "gbytes_per_s": pairs.gbytes_per_s, "latency_s": pairs.latency_s}
        return {"run": self.run.id, "nodes": nodes, "findings": told, "links": links, "ok": self.ok}


def values(asked: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The user's options, turned into those of the job's launch."""
    told = {"env": [*(asked.get("env") or []), "DISTLAUNCH_FACTS=full"]}
    return {**asked, **told, "script": "doctor.py", "args": ["--seconds", f"{seconds:g}"]}


def request(backend_name: str | None, asked: dict[str, Any], settings: config.Config) -> Request:
    """The request for the job, with those of the settings that concern it."""
    return resolve(backend_name, asked, replace(settings, ignored=IGNORED))


def check_reports(request: Request) -> None:
    """Raise `SpecError` if the nodes' reports could not be read."""
    if getattr(request.backend.opts, "login_shell", "sh") == "none":
        raise SpecError(
            "doctor reads what its job writes, and login_shell = 'none' allows single commands only",
            hint="distlaunch doctor slurm on the login node, or on a node",
        )


def check_quarantine(request: Request) -> None:
    """Raise `SpecError` if the request has no cluster, or a backend that cannot exclude hosts."""
    if not request.cluster:
        raise SpecError(
            "--quarantine needs a cluster to keep the list for", hint="distlaunch doctor --on CLUSTER --quarantine"
        )
    if not any(item.name == "exclude" for item in fields(request.backend.options)):
        raise SpecError(
            f"--quarantine: a cluster with the backend {request.backend_name} has no hosts that could be left out"
        )


def examine_nodes(request: Request, run: Run, outcome: Outcome, *, puts_away: bool = False) -> Examination:
    """Collect the nodes' reports and compare them. `puts_away`: quarantine hosts that fail beyond doubt."""
    reports, facts = _collect(request, run)
    found = [*examine.examine(reports, facts), *([] if reports else examine.meeting(outcome.cause))]
    hosts = _names(run, outcome)
    silent = sorted(set(range(len(run.hosts))) - {report["node"] for report in reports})
    if puts_away:
        bad = to_leave_out(found, examine.lasting(reports, facts), hosts, silent)
        quarantine.add(str(request.cluster), bad, os.environ)
    _note(request.cluster or request.backend_name, run, hosts, found, silent)
    first = {report["node"]: report for report in reports if report["local_rank"] == 0}
    every = ((node, check) for node in hosts for check in checks.known())
    pairs = heat_map.of_nodes(reports, hosts)
    if pairs:
        try:
            storage.write_whole(run.path / PICTURE, heat_map.svg(pairs, f"{run.id}: pairs of nodes").encode())
        except StorageError as error:
            output.warn(error.message)
    return Examination(
        run=run,
        hosts=hosts,
        silent=silent,
        found=found,
        seen={(node, check) for node, check in every if checks.known()[check].seen(first.get(node), facts.get(node))},
        pairs=pairs,
        exit_code=outcome.exit_code if outcome.exit_code is not None else 4,
    )


def _note(cluster: str, run: Run, hosts: dict[int, str], found: list[Finding], silent: list[int]) -> None:
    """Record what was found as the last verdict about each host."""
    now = round(time.time())
    told: dict[str, results.Verdict] = {
        host: {"time": now, "run": run.id, "status": "ok", "findings": []} for host in hosts.values()
    }
    missing = [Finding(node, "report", "fail", "nothing came from it", "") for node in silent]
    for finding in [*found, *missing]:
        verdict = told[hosts[finding.node]]
        verdict["findings"].append({"check": finding.check, "status": finding.status, "reason": finding.reason})
        verdict["status"] = findings.worse(verdict["status"], finding.status)
    try:
        verdicts.note(cluster, told, os.environ)
    except LaunchError as error:
        output.warn(f"the verdict is not kept for distlaunch hosts: {error.message}")


def to_leave_out(
    found: list[Finding], sure: set[tuple[int, str]], hosts: dict[int, str], silent: list[int]
) -> dict[str, str]:
    """Hosts that later runs should exclude, and why; none whose name several nodes share."""
    known = Counter(hosts.values())
    bad = [f for f in found if f.status == "fail" and (f.node, f.check) in sure and f.node not in silent]
    return {hosts[f.node]: f"{f.check}: {f.reason}" for f in bad if known[hosts[f.node]] == 1}


def _names(run: Run, outcome: Outcome) -> dict[int, str]:
    """Host of each node: the one chosen at submission, else the one that its agent reports."""
    told = {node.node: node.host for node in outcome.nodes}
    return told | (dict(enumerate(run.hosts)) if isinstance(run.known.get("hosts"), list) else {})


def release(cluster: str | None, hosts: tuple[str, ...]) -> dict[str, str]:
    """Remove hosts from the cluster's quarantine. Returns the hosts that remain, and why each is there."""
    if not cluster:
        raise SpecError(
            "--release needs the cluster whose list it is", hint="distlaunch doctor --on CLUSTER --release HOST"
        )
    config.load().cluster(cluster, lambda name: backends.load(name).options)
    if unknown := [host for host in hosts if host not in quarantine.hosts(cluster, os.environ)]:
        listed = folded(quarantine.hosts(cluster, os.environ)) or "no host"
        raise SpecError(f"{unknown[0]} is not in {cluster}'s quarantine", hint=f"in it: {listed}")
    quarantine.release(cluster, hosts, os.environ)
    return quarantine.hosts(cluster, os.environ)


def start(planned: launch.Launch, interrupts: Interrupts | Unattended) -> Run:
    """Submit the job."""
    check_reports(planned.request)
    return launch.start(planned, interrupts)


def follow(planned: launch.Launch, run: Run, interrupts: Interrupts | Unattended) -> Outcome:
    """Follow the job to its end."""
    from launcher.service.follow import Follower, View
    from launcher.service.leaving import Leaving

    nodes = len(planned.plan.nodes)
    output.note(f"{summary.heading(run)}: examining {amounts.counted(nodes, 'node')}")
    outcome = Follower(run, planned.request.backend, View(frozenset()), Leaving(interrupts)).follow()
    if outcome.state != "success":
        output.warn(f"the job did not succeed: {(outcome.cause or {}).get('message') or outcome.state}")
    return outcome


def _collect(request: Request, run: Run) -> tuple[list[dict[str, Any]], dict[int, dict[str, Any]]]:
    """The reports and facts in the nodes' streams, read from the start."""
    bringing.everything(run, request.backend)
    stream = request.backend.open_stream(run.known)
    readers = {node: StreamReader(None, node) for node in range(len(run.hosts))}
    found = Reports(len(run.hosts))
    limit = time.monotonic() + _COLLECT_S
    try:
        while found.done < len(run.hosts) and time.monotonic() < limit:
            for chunk in stream.read(0.5):
                if isinstance(chunk.node, int):
                    for record in readers[chunk.node].feed(chunk.data):
                        found.take(chunk.node, record)
    finally:
        stream.close()
    for rank, nodes in list(found.claimed_twice.items())[:1]:
        output.warn(f"nodes {' and '.join(map(str, nodes))} claim the same rank {rank}: their reports are ignored")
    return found.reports, found.facts
