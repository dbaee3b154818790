"""Starts a run with the playbook in its directory: the hosts' answers become a handle, or one error."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent.system.folding import folded
from launcher.backends.ansible import playbook, taking_over
from launcher.errors import BackendUnavailableError, RequestError
from launcher.login.hints import hints as known_hints
from launcher.login.hints import last_line
from launcher.system import storage
from launcher.system.hosts import lines as hosts_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.backends._base import Record
    from launcher.backends.ansible.handle import AnsibleHandle, Node
    from launcher.backends.ansible.packing import Packing
    from launcher.login.connection import Login
    from launcher.runs.handle import Meeting

_MOUNTS = 2
_PATH_LENGTH = 4096


def start(
    run_dir: Path, hosts: Sequence[str], secrets: Sequence[str], login: Login | None, packing: Packing | None = None
) -> AnsibleHandle:
    """Run the playbook in the run's directory. The hosts' answers are kept until `forget`."""
    began = time.monotonic()
    running = _playbook(run_dir)
    # Without pidfds, which not every Python has, we connect to the hosts ourselves.
    receiver = taking_over.Receiver(run_dir, len(hosts)) if hasattr(signal, "pidfd_send_signal") else None
    running.run({name: os.environ[name] for name in secrets}, receiver, packing)
    try:
        _check(len(hosts), running)
    except BaseException:
        taking_over.forget(str(run_dir))
        raise
    handle = _handle(run_dir, hosts, running, login)
    for text in (*_together(running.notes, hosts), *_left_out(running)):
        output.warn(text)
    if _own_directories(handle, running):
        output.note(
            f"these hosts share no disk: what rank 0 writes to relative paths is on {handle['hosts'][0]} alone "
            "(distlaunch fetch copies it); a path on a shared file system is on all"
        )
    output.note(f"{_about_master(handle)}; all agents started after {time.monotonic() - began:.1f} s")
    return handle


def forget(run_dir: Path) -> None:
    """Remove the hosts' answers: they record what was started until the handle does, or until it has ended."""
    _playbook(run_dir).forget()


def on_record(handle: AnsibleHandle, record: Record) -> AnsibleHandle:
    """Record the handle; only then remove what the hosts have answered."""
    record(handle)
    forget(Path(handle["run_dir"]))
    return handle


def _playbook(run_dir: Path) -> playbook.Playbook:
    return playbook.Playbook(run_dir / "ansible", "start.yml")


def _check(nodes: int, running: playbook.Playbook) -> None:
    """Raise one error that names every host that cannot take part, with its reason."""
    started = running.answers.get("start", {})
    if len([host for host in started.values() if host.get("agent")]) >= len(
        running.choice.get("ranks") or range(nodes)
    ):
        return
    problems = {host: clean(problem["message"]) for host, problem in running.problems.items()}
    kinds = {problem["kind"] for problem in running.problems.values()}
    if kinds == {"here"}:  # it is not about the host
        raise RequestError(next(iter(problems.values())))
    lines = hosts_lines(problems)
    asked = len(running.answers.get("preflight", {}))
    nobody = "Ansible reached no host: it reads a different inventory than distlaunch does"
    head = f"{len(problems)} of {asked} hosts cannot take part" if lines else running.failure or nobody
    error = RequestError if kinds and kinds <= {"duplicate", "settings"} else BackendUnavailableError
    hints = [*known_hints(list(problems.values())), *_hints(kinds)]
    raise error(
        "; ".join([head, *lines]) if len(lines) < 2 else "\n  ".join([head + ":", *lines]),
        hint="\n        ".join(hints) or None,
    )


def recover(run_dir: Path, hosts: Sequence[str], login: Login | None) -> AnsibleHandle | None:
    """What a launcher that died while it ran the playbook may have started; None if no host was asked to start."""
    running = playbook.Playbook(run_dir / "ansible", "start.yml", shows=False)
    running.follow()
    if not running.told("start"):
        return None
    nodes = _nodes(running.answers["preflight"], running, login)
    return {"run_dir": str(run_dir), "hosts": _by_rank(run_dir, hosts, nodes), "nodes": list(nodes.values())}


def _by_rank(run_dir: Path, planned: Sequence[str], chosen: Mapping[str, Node]) -> list[str]:
    """The hosts by node rank; for nodes of an elastic run that are not started, those that were planned besides."""
    job = storage.read_json(run_dir / "ansible/job.json") or {}
    elastic = job.get("min_nodes") != job.get("max_nodes")
    others = [host for host in planned if host not in chosen] if elastic else []
    return [*chosen, *others][: len(planned)]


def target(node: Node) -> tuple[str, str]:
    """The arguments by which a call on a host names the node."""
    return str(node["directory"]), str(node["rank"])


def put_behind(login: Login | None, node: Node, facts: Mapping[str, Any]) -> None:
    """Note that the login node reaches the node's host, if it does by the host's facts."""
    if login and facts.get("proxied"):
        node["login"], node["cluster"] = login.address, login.cluster


def mounts(facts: Mapping[str, Any]) -> list[str]:
    """Where the disk with the run's directory is mounted on a host, which no host can make too long for a command."""
    return [str(place)[:_PATH_LENGTH] for place in facts.get("mounts", ())[:_MOUNTS]]


def _nodes(answers: Mapping[str, Any], running: playbook.Playbook, login: Login | None) -> dict[str, Node]:
    """How each node is reached and called, by host, in rank order."""
    found: dict[str, Node] = {}
    for host, rank in (running.choice.get("ranks") or {}).items():
        facts = answers.get(host) or {}
        if facts.get("ssh") is None:
            raise BackendUnavailableError(
                f"{host} is not reached by ssh",
                hint="only ansible_connection: ssh can be followed; distlaunch local runs here",
            )
        found[host] = {
            "host": host,
            "rank": rank,
            "python": facts["python_used"],
            "ssh": facts["ssh"],
            "directory": facts["directory"],
            "agent_path": facts["agent_path"],
            "login_s": facts.get("login_s", 0.0),
            "mounts": mounts(facts),
        }
        put_behind(login, found[host], facts)
        started = running.answers.get("start", {}).get(host) or {}
        if "agent" in started:
            found[host].update({"agent": started["agent"], "work": started["work"]})
    return found


def _handle(run_dir: Path, planned: Sequence[str], running: playbook.Playbook, login: Login | None) -> AnsibleHandle:
    """Everything that another shell needs to follow the run, given the same keys."""
    nodes = _nodes(running.answers["preflight"], running, login)
    notes: dict[str, list[str]] = {}
    for host in nodes:
        for note in running.answers["start"][host].get("notes") or ():
            notes.setdefault(note, []).append(host)
    for note, named in notes.items():
        output.warn(f"{folded(named)}: {note}")
    first = running.answers["start"][running.choice["master"]]
    meeting: Meeting = {"addresses": first["addresses"], "port": first["port"]}
    meeting.update(running.meeting)
    return {
        "run_dir": str(run_dir),
        "hosts": _by_rank(run_dir, planned, nodes),
        "nodes": list(nodes.values()),
        "output_dir": running.answers["start"][running.choice["master"]]["work"],
        "rendezvous": meeting,
    }


def _own_directories(handle: AnsibleHandle, running: playbook.Playbook) -> bool:
    """Whether several hosts have working directories of their own, on disks of their own."""
    base = str(running.answers["preflight"][handle["nodes"][0]["host"]]["dir"])
    return len(running.choice.get("copying") or ()) > 1 and handle["output_dir"].startswith(f"{base}/")


def _about_master(handle: AnsibleHandle) -> str:
    """Where the nodes meet, and why."""
    meeting = handle["rendezvous"]
    if "reason" not in meeting:
        return f"node 0 listens on {meeting['addresses'][0]} port {meeting['port']}"
    where = f"{meeting['address']} port {meeting['port']}" if meeting["address"] else f"port {meeting['port']}"
    return f"node 0 listens on {where}: {meeting['reason']}"


def _left_out(running: playbook.Playbook) -> list[str]:
    problems = {host: clean(problem["message"]) for host, problem in running.problems.items()}
    return [f"left out: {line}" for line in hosts_lines(problems)]


def _together(notes: Sequence[str], hosts: Sequence[str]) -> list[str]:
    """Notes, those about single hosts as one for all hosts with the same."""
    found: list[str] = []
    said: dict[str, str] = {}
    for note in notes:
        host, colon, message = note.partition(": ")
        if colon and host in hosts and host not in said:
            said[host] = message
        else:
            found.append(note)
    return found + hosts_lines(said)


def clean(message: str) -> str:
    """ssh's message in one line, without Ansible's words around it."""
    message = re.sub(
        r"^(Task failed: |Action failed: |Data could not be sent to remote host [^:]*over ssh: )+", "", message
    )
    message = re.sub(r"^Failed to connect to the host via ssh:\s*", "", message.strip())
    return last_line(message) or message


def _hints(kinds: set[str]) -> list[str]:
    """What to do about these kinds of problems."""
    known = {
        "torch": "all hosts need the same torch; --python PATH, or distlaunch_python of a host, names an interpreter",
        "framework": "all hosts need it, in one version; --python PATH, or distlaunch_python of a host, names a Python",
        "host": "--python PATH, or distlaunch_python of a host, names an interpreter with torch; "
        "-v shows each host's answer",
        "duplicate": "take one of the names out of the inventory",
        "busy": "--wait waits for it, --partial takes only hosts that are free, --share uses it nonetheless; "
        "distlaunch hosts shows who has what",
        "setup": "--setup lines run in bash on each host, in a login without a terminal",
        "disk": "make room there, or choose another directory: --remote-dir",
        "files": "without --in-place the working directory's files are sent",
    }
    return [text for kind, text in known.items() if kind in kinds]
