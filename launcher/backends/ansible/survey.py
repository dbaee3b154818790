"""What the hosts of an inventory report about their load, their GPUs, and who has them; and the runs of all users."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent.system import users
from launcher.backends import _warm
from launcher.backends._outlook import Outlook, by_free, capacity, free_gpus
from launcher.backends.ansible.adoption import misfit
from launcher.backends.ansible.start import clean
from launcher.errors import BackendUnavailableError, CommandError
from launcher.runs import directories
from launcher.system import amounts, numbers
from launcher.system.hosts import lines as hosts_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from launcher.backends.ansible.inventory import Host
    from launcher.backends.ansible.playbook import Playbook
    from launcher.results.cluster import Lease, SurveyedHost
    from launcher.results.run import ClusterRun
    from launcher.results.warm import WarmServer
    from launcher.spec import JobSpec


def surveyed(hosts: Sequence[Host], asked: Playbook) -> list[SurveyedHost]:
    """Each host's answer, in the order of the inventory."""
    found: list[SurveyedHost] = []
    for host in hosts:
        answer = asked.answers.get("survey", {}).get(host.name, {})
        said = asked.problems.get(host.name, {}).get("message")
        problem = None if said is None else clean(said)
        known = {} if problem else answer
        gpus = known.get("gpus", ())
        leases = [_lease(note) for note in known.get("held", ()) if "used_mib" not in note]
        taken = {gpu for lease in leases for gpu in lease["gpus"] or ()}
        found.append(
            {
                "host": host.name,
                "state": "up" if problem is None else "unreachable",
                "problem": problem,
                "load": known.get("load"),
                "cpus": known.get("cpus"),
                "gpus": [
                    {"gpu": gpu["gpu"], "used_mib": gpu["used_mib"], "total_mib": gpu["total_mib"], "busy": gpu["busy"]}
                    for gpu in gpus
                ],
                "gpus_total": None if problem else len(gpus),
                "gpus_used": None if problem else sum(gpu["busy"] or gpu["gpu"] in taken for gpu in gpus),
                "leases": leases,
                "waiting": [_lease(note) for note in known.get("ahead", ())],
                "quarantine": None,
                "doctor": None,
            }
        )
    return found


def _lease(note: Mapping[str, Any]) -> Lease:
    """A holder's note, which any user of the host may have written."""
    run, user, since = note.get("run"), note.get("user"), note.get("since")
    return {
        "run": run if isinstance(run, str) and directories.is_id(run) else None,
        "user": user if isinstance(user, str) and user.isprintable() else None,
        "since": float(since) if numbers.is_number(since) and isinstance(since, (int, float)) else None,
        "gpus": note.get("gpus"),
    }


def outlook(hosts: Sequence[SurveyedHost], spec: JobSpec, gpus: int | None) -> Outlook:
    """What the hosts have, and whether enough of them are free for the job."""
    reached = [host for host in hosts if host["problem"] is None and host["quarantine"] is None]
    leases = [lease for host in reached for lease in host["leases"]]
    waiting = {lease["run"] for host in reached for lease in host["waiting"]}
    me = users.name_of(os.getuid())
    found = capacity(
        hosts,
        lambda host: not host["leases"] and free_gpus(host) == len(host["gpus"]),
        waiting=len(waiting),
        own_runs=len({lease["run"] for lease in leases if lease["user"] == me}),
    )
    workers = None if spec.workers_per_node == "auto" else spec.workers_per_node
    able = [host for host in reached if gpus is None or len(host["gpus"]) >= gpus]
    fits = sum(_fits(host, workers if gpus is None else gpus) for host in able)
    wanted = len(hosts) if spec.all_nodes else spec.nodes.min
    return Outlook(found, by_free(wanted, fits, len(able), "hosts" if gpus is None else f"hosts with {gpus} GPUs"))


def _fits(host: SurveyedHost, workers: int | None) -> bool:
    """Whether a run with that many workers per host, or one per GPU, could have its lease now."""
    if not host["gpus"]:
        return not host["leases"]
    return free_gpus(host) >= (len(host["gpus"]) if workers is None else min(workers, len(host["gpus"])))


def standing(hosts: Sequence[Host], asked: Playbook, *, end: bool) -> list[WarmServer]:
    """What runs have left standing on the hosts, the newest first; `end`: and was ended.

    Of a host with several names in the inventory, under one of them.
    Warns about hosts that have not answered. Raises `BackendUnavailableError` if none has, and `CommandError` if what
    stands on some of them was to be ended.
    """
    told: dict[tuple[str, int, float], WarmServer] = {}
    for host in hosts:
        answer = asked.answers.get("standing", {}).get(host.name, {})
        for each in answer.get("servers", ()):
            told.setdefault((answer["place"], each["pid"], each["since"]), _warm.server(host.name, each))
    found = list(told.values())
    problems = {host: clean(problem["message"]) for host, problem in asked.problems.items()}
    if problems:
        said = "; ".join(hosts_lines(problems))
        if len(problems) == len(hosts):
            raise BackendUnavailableError(f"no host has answered: {said}")
        if end:
            message = f"{amounts.counted(len(found), 'server')} ended, but not all hosts have answered: {said}"
            raise CommandError(message, hint="what stands there ends by itself after its time", in_part=True)
        output.warn(f"not all hosts have answered: {said}")
    return sorted(found, key=lambda each: -each["since"])


def runs(asked: Playbook) -> list[ClusterRun]:
    """All running runs: of leases by any user, and those in directories that we can read, with their commands."""
    for host, problem in asked.problems.items():
        output.warn(f"{host}: {problem['message']}")
    found: dict[str, ClusterRun] = {}
    for host, lease in _leases(asked):
        run = found.setdefault(str(lease["run"]), _new(str(lease["run"]), lease["user"], lease["since"] or 0.0))
        run["hosts"].append(host)
        if lease["gpus"] is not None:
            run.setdefault("gpus", {})[host] = lease["gpus"]
    for name, ranked in _ranked(asked).items():
        run = found.setdefault(name, _new(name, None, 0.0))
        run["hosts"] = [host for _, host in sorted(ranked.items())]
        run["command"] = asked_command(asked, name)
    for run in found.values():
        run["nodes"] = str(len(run["hosts"]))
    return sorted(found.values(), key=lambda run: run["created"])


def _new(name: str, user: str | None, since: float) -> ClusterRun:
    return {
        "run": name,
        "state": "running",
        "nodes": "",
        "created": directories.created(name) or since,
        "user": user,
        "job_id": None,
        "hosts": [],
        "command": [],
    }


def _leases(asked: Playbook) -> Iterator[tuple[str, Lease]]:
    """The leases of runs, with their hosts."""
    for host, answer in asked.answers.get("survey", {}).items():
        for note in answer.get("held", ()):
            lease = _lease(note)
            if lease["run"] is not None:
                yield host, lease


def _nodes(asked: Playbook) -> Iterator[tuple[str, dict[str, Any]]]:
    """The running nodes in directories that we can read, with their hosts."""
    for host, answer in asked.answers.get("runs", {}).items():
        for node in answer.get("nodes", ()):
            if wrong := misfit(node, ""):
                output.warn(f"{host}: its report about a run is ignored: {wrong}")
            else:
                yield host, node


def _ranked(asked: Playbook) -> dict[str, dict[int, str]]:
    """By run, the hosts of its nodes."""
    found: dict[str, dict[int, str]] = {}
    for host, node in _nodes(asked):
        found.setdefault(node["run"], {})[node["node"]] = host
    return found


def asked_command(asked: Playbook, run: str) -> list[str]:
    """The command of a run in a directory that we can read."""
    return next((list(node["job"]["command"]) for _, node in _nodes(asked) if node["run"] == run), [])
