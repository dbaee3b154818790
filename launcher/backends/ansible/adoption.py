"""A run that was started on another host: found on its hosts, and made a run of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.backends.ansible.start import mounts, put_behind
from launcher.errors import BackendUnavailableError, RunNotFoundError
from launcher.runs import directories
from launcher.system import numbers

_MANY = 100_000

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from launcher.backends.ansible import playbook
    from launcher.backends.ansible.handle import AnsibleHandle, Node
    from launcher.backends.ansible.inventory import Host
    from launcher.login.connection import Login


def look(text: str, hosts: Sequence[Host], running: playbook.Playbook) -> Found:
    """The run whose id starts with `text` by the answers of these hosts; names silent hosts.

    Raises `RunNotFoundError` if they know none, or several.
    """
    silent = {host: problem["message"] for host, problem in running.problems.items()}
    for host, message in silent.items():
        output.warn(f"{host}: {message}")
    nodes = _reported(running.answers.get("runs", {}), text)
    names = sorted({node["run"] for node in nodes})
    if len(names) != 1:
        known = ", ".join(names[-5:])
        what = f"{text!r} matches {len(names)} runs" if names else f"no run {text!r}"
        raise RunNotFoundError(f"{what} on {', '.join(host.name for host in hosts)}", hint=known or None)
    by_rank = {node["node"]: node for node in nodes}
    if len(by_rank) < len(nodes):
        rank, hosts_of = _claimed_twice(nodes)
        raise BackendUnavailableError(
            f"{names[0]}: {' and '.join(hosts_of)} both say that they have its node {rank}",
            hint="leave one of them out: --limit",
        )
    job = by_rank[min(by_rank)]["job"]
    # A run with MIN:MAX nodes may have started with fewer than MAX, whose ranks are the first ones.
    count = job["max_nodes"] if job["min_nodes"] == job["max_nodes"] else max(job["min_nodes"], *by_rank, 0)
    missing = sorted(set(range(count)) - set(by_rank))
    if missing:
        hint = (
            f"hosts that do not answer: {', '.join(silent)}"
            if silent
            else "the inventory must contain all of its hosts"
        )
        raise BackendUnavailableError(f"{names[0]}: no host has its node {', '.join(map(str, missing))}", hint=hint)
    return Found(names[0], job, [by_rank[rank] for rank in sorted(by_rank)], running.answers["preflight"])


def _reported(answers: Mapping[str, Any], text: str) -> list[dict[str, Any]]:
    """The nodes of such runs that hosts report, each with its `host`; a report that does not fit is ignored."""
    nodes = []
    for host, answer in answers.items():
        for node in answer.get("nodes") or ():
            if wrong := misfit(node, text):
                output.warn(f"{host}: its report about a run is ignored: {wrong}")
            else:
                nodes.append({**node, "host": host})
    return nodes


def _claimed_twice(nodes: Sequence[Mapping[str, Any]]) -> tuple[int, list[str]]:
    """A node that several hosts claim to have, and these hosts."""
    of_rank: dict[int, list[str]] = {}
    for node in nodes:
        of_rank.setdefault(node["node"], []).append(node["host"])
    return next((rank, hosts) for rank, hosts in of_rank.items() if len(hosts) > 1)


def misfit(node: Any, text: str) -> str:
    """What is wrong with a host's answer about a node: hosts are untrusted, and answers become paths and commands."""
    job = node.get("job") if isinstance(node, dict) else None
    if not isinstance(job, dict):
        return "it has no job"
    kinds: dict[str, tuple[Any, type | tuple[type, ...]]] = {
        "run": (node.get("run"), str),
        "node": (node.get("node"), int),
        "run_directory": (node.get("run_directory"), str),
        "work": (node.get("work"), str),
        "workers": (node.get("workers"), (int, str)),
        "agent": (node.get("agent"), dict),
        "max_nodes": (job.get("max_nodes"), int),
        "min_nodes": (job.get("min_nodes"), int),
        "command": (job.get("command"), list),
        "cwd": (job.get("cwd", ""), str),
        "grace_s": (job.get("grace_s", 30.0), (int, float)),
    }
    for name, (value, kind) in kinds.items():
        if not isinstance(value, kind) or not (numbers.is_number(value) or isinstance(value, (str, list, dict))):
            return f"{name} is {str(value)[:40]!r}"
    if not (directories.is_id(node["run"]) and node["run"].startswith(text)):
        return f"{node['run'][:40]!r} is not a run that was asked for"
    if not 0 <= node["node"] < job["max_nodes"] <= _MANY or not 0 < job["min_nodes"] <= job["max_nodes"]:
        return f"node {node['node']} of {job['min_nodes']} to {job['max_nodes']}"
    if not job["command"] or not all(isinstance(word, str) for word in job["command"]):
        return "command is not a list of words"
    grace = job.get("grace_s", 30.0)
    return "" if numbers.is_time(grace) else f"grace_s is {grace}"


class Found:
    """A run as its hosts report it."""

    def __init__(self, run: str, job: dict[str, Any], nodes: list[dict[str, Any]], facts: Mapping[str, Any]) -> None:
        self.run, self.job, self._nodes, self._facts = run, job, nodes, facts

    @property
    def planned(self) -> list[dict[str, Any]]:
        """The nodes in the form of a plan."""
        return [{"node_rank": node["node"], "host": node["host"], "workers": node["workers"]} for node in self._nodes]

    def handle(self, run_dir: Path, login: Login | None = None) -> AnsibleHandle:
        """The handle that the launcher which started the run would have."""
        found: list[Node] = []
        for node in self._nodes:
            facts = self._facts[node["host"]]
            found.append(
                {
                    "host": node["host"],
                    "rank": node["node"],
                    "python": facts["python_used"],
                    "ssh": facts["ssh"],
                    "directory": node["run_directory"],
                    "agent_path": facts["agent_path"],
                    "login_s": facts.get("login_s", 0.0),
                    "mounts": mounts(facts),
                    "work": node["work"],
                    "agent": node["agent"],
                }
            )
            put_behind(login, found[-1], facts)
        return {"run_dir": str(run_dir), "hosts": [node["host"] for node in self._nodes], "nodes": found}
