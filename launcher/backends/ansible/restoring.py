"""The directory with which a run is started again, made anew from its hosts if another launcher has started it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.agent.job import Job
from launcher.agent.named_tuple import NamedTuple
from launcher.backends.ansible import ansible_config as config
from launcher.backends.ansible import inventory, planning, playbook, ssh
from launcher.backends.ansible.plan import BY_HOST
from launcher.backends.ansible.start import target
from launcher.errors import BackendUnavailableError, CommandError, RequestError
from launcher.payload import agent_archive, setup_lines
from launcher.system import storage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.backends.ansible.handle import AnsibleHandle
    from launcher.backends.ansible.options import AnsibleOptions
    from launcher.login.connection import Login


_THERE = "distlaunch requeue RUN where it was started"
_TEMPLATE = re.compile("{[{%#]")


class _Request(NamedTuple):
    """What a host has kept of the request to its agent."""

    job: dict[str, Any]
    python: str
    secrets: list[str]
    setup: str | None
    """None if an earlier version has started it, which kept neither this nor the container."""

    container: dict[str, Any] | None


def restore(options: AnsibleOptions, handle: AnsibleHandle, cwd: str, login: Login | None) -> None:
    """Make the directory of an adopted run: its hosts, its job and its Python, with its files as they are there."""
    requests = [_request(answer) for answer in ssh.call_all(handle, _ask)]
    job = requests[0].job
    if job.get("kind") == "function":
        raise RequestError("it calls a function, which only its own launcher has", hint=_THERE)
    setup = _setup(options, requests)
    container = "" if job.get("roles") else _same("containers", [_text_of(one.container) for one in requests])
    run_dir = Path(handle["run_dir"])
    sources = inventory.sources(options.inventory, cwd)
    settings = config.variables(sources, cwd, len(handle["hosts"]))
    variables: dict[str, Any] = {
        "distlaunch_run": run_dir.name,
        "distlaunch_hosts": list(handle["hosts"]),
        "distlaunch_nodes": job["max_nodes"],
        "distlaunch_least_nodes": job["min_nodes"],
        **planning.lease_mode(options),
        **planning.common(options, cwd, login),
        "distlaunch_digest": "",
        "distlaunch_payload_bytes": 0,
        "distlaunch_torch": False,  # they had what the script needs
        **_answered(requests, handle["hosts"]),
    }
    job = {name: value for name, value in job.items() if name in Job._fields and name not in BY_HOST}
    texts = playbook.directory_texts(sources, settings, variables)
    texts |= {name: text for name, text in (("setup.sh", setup), ("container.json", container)) if text}
    playbook.write_directory(run_dir / "ansible", texts, {"agent.pyz": agent_archive.packed()})
    storage.write_whole(run_dir / "ansible/job.json", storage.encode_json(job))


def _setup(options: AnsibleOptions, requests: Sequence[_Request]) -> str:
    """The setup lines, which are those of the options here if the hosts have not kept them."""
    kept = [one.setup for one in requests if one.setup is not None]
    if len(kept) == len(requests):
        return _same("setup lines", kept)
    if options.container_image:
        raise RequestError("it runs in containers", hint=_THERE)
    return "\n".join(setup_lines.watched(options.setup, ship_secrets=True))


def _answered(requests: Sequence[_Request], hosts: Sequence[str]) -> dict[str, Any]:
    """Ansible's variables by what the hosts have answered, in which it would run a template here."""
    workers = [str(one.job.get("workers")) for one in requests]
    pythons = [one.python for one in requests if not one.container]  # of others, it is the container's
    found: dict[str, Any] = {
        "distlaunch_cwd": _named("working directories", [str(one.job.get("cwd")) for one in requests]),
        "distlaunch_secrets": sorted({name for one in requests for name in one.secrets}),
        **({"distlaunch_python": _named("interpreters", pythons)} if pythons else {}),
        **({"distlaunch_workers": workers[0]} if len(set(workers)) == 1 else {}),
    }
    if names := _role_names(requests[0].job, len(hosts)):
        parts = zip(hosts, names, workers, requests, strict=True)
        of_all = {"torch": False, "contract": ""}
        found["distlaunch_parts"] = {
            host: {**of_all, "role": name, "workers": count, "container": one.container}
            for host, name, count, one in parts
        }
    if _TEMPLATE.search(json.dumps(found)):
        raise BackendUnavailableError("a host does not know how the run was started: its answer has a template")
    return found


def _ask(node: Any) -> dict[str, Any]:
    return ssh.call(node, "request", *target(node))


def _request(answer: Any) -> _Request:
    """The validated answer of a host, which is untrusted."""
    if isinstance(answer, CommandError):
        raise BackendUnavailableError(f"its hosts do not all answer: {answer.message}", hint="try again when they do")
    job, python, secrets = answer.get("job"), answer.get("python"), answer.get("secrets")
    whole = isinstance(job, dict) and isinstance(job.get("max_nodes"), int) and isinstance(job.get("min_nodes"), int)
    if not whole or not isinstance(python, str) or not isinstance(secrets, list) or not all(map(_is_text, secrets)):
        why = str(answer.get("problem") or "its answer is not an agent's")[:400]
        raise BackendUnavailableError(f"a host does not know how the run was started: {why}")
    setup, container = answer.get("setup"), answer.get("container")
    if not (setup is None or _is_text(setup)) or not (container is None or _is_container(container)):
        raise BackendUnavailableError("a host does not know how the run was started: its setup is not an agent's")
    return _Request(job, python, secrets, setup, container)


def _role_names(job: dict[str, Any], nodes: int) -> list[str]:
    """The role of each node, by node rank; empty if the run has no roles."""
    roles = job.get("roles") or []
    are_roles = isinstance(roles, list) and all(_is_role(role, nodes) for role in roles)
    names = [role["name"] for role in roles for _ in range(role["nodes"])] if are_roles else []
    if len(names) != (nodes if roles else 0):
        raise BackendUnavailableError("a host does not know how the run was started: its roles are not an agent's")
    return names


def _is_role(role: object, nodes: int) -> bool:
    return isinstance(role, dict) and _is_text(role.get("name")) and role.get("nodes") in range(1, nodes + 1)


def _is_container(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("mounts"), list):
        return False
    return all(map(_is_text, (*value["mounts"], *(value.get(name) for name in ("runtime", "image", "python")))))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _text_of(container: dict[str, Any] | None) -> str:
    return json.dumps(container, indent=2, sort_keys=True) if container else ""


def _same(what: str, values: Sequence[str]) -> str:
    """The only one of these values."""
    if len(set(values)) != 1:
        listed = ", ".join(sorted(set(values)))[:400]
        raise RequestError(f"its hosts have different {what}: {listed}", hint=_THERE)
    return values[0]


def _named(what: str, values: Sequence[str]) -> str:
    """The only one of these values, which is not empty."""
    if not (value := _same(what, values)):
        raise RequestError(f"its hosts do not know their {what}", hint=_THERE)
    return value
