"""What the object that owns a run says about it, for users who have not started it: written at submission, in JSON."""

from __future__ import annotations

import getpass
import json
import os
import re
from typing import TYPE_CHECKING, Any, TypedDict

from launcher.backends.kubernetes import pod
from launcher.system import numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.backends.kubernetes.objects import Manifest
    from launcher.backends.kubernetes.parts import Part
    from launcher.spec import JobSpec

NOTE = "distlaunch/about"
"""The annotation."""

ATTEMPT = "distlaunch/attempt"
"""Annotation of what `requeue` has created: the number of the attempt, and which command has created it."""

ADDED = (
    "kubectl.kubernetes.io/last-applied-configuration",
    "kueue.x-k8s.io/",
    "batch.kubernetes.io/",
    "controller-uid",
    "job-name",
)
"""Labels and annotations that a cluster adds."""

_COMMAND_BYTES = 64 * 1024
"""An object's annotations may have 256 KiB."""

_ROLE = r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?"
_MANY_NODES = 100_000
_DIGITS = 8


class RoleAbout(TypedDict):
    """One role."""

    name: str
    nodes: int
    workers: int
    """Per node."""

    ignored: bool
    """Whether its failures are."""


class _Told(TypedDict):
    """What the objects themselves do not say, or only in the terms of their kind."""

    kind: str
    """The value of `--kind`."""

    command: list[str]
    """Script, module or program, then its arguments; the last ones are missing if they are very long."""

    cwd: str
    nodes: int
    """The largest number of nodes."""

    min_nodes: int
    workers: int
    """Per node."""

    grace_s: float
    python: str
    """The interpreter in the pods."""

    user: str
    """Who started it, by the name on that host."""


class About(_Told, total=False):
    """The same, with what only some runs have."""

    roles: list[RoleAbout]
    """In the order of their nodes; missing if the run has none."""


def note(spec: JobSpec, of_run: Sequence[Part], kind: str, python: str) -> dict[str, str]:
    """The annotation for a run that is about to be submitted."""
    command, size = [], 0
    for word in spec.command:
        size += len(json.dumps(word)) + 2
        if size > _COMMAND_BYTES:
            break
        command.append(word)
    about: About = {
        "kind": kind,
        "command": command,
        "cwd": spec.cwd,
        "nodes": spec.nodes.max,
        "min_nodes": spec.nodes.min,
        "workers": pod.workers(of_run[0].job, of_run[0].opts),
        "grace_s": spec.grace_s,
        "python": python,
        "user": _user(),
    }
    if spec.roles:
        about["roles"] = [
            {
                "name": part.role,
                "nodes": part.nodes.max,
                "workers": pod.workers(part.job, part.opts),
                "ignored": part.ignored,
            }
            for part in of_run
        ]
    return {NOTE: json.dumps(about)}


def add(objects: list[Manifest], told: Mapping[str, str]) -> None:
    """Annotate the object that owns the others."""
    owner_of(objects)["metadata"].setdefault("annotations", {}).update(told)


def owner_of(objects: Sequence[Manifest]) -> Manifest:
    """The object that owns the others: the first one of bare pods, else the last one."""
    return objects[0] if objects[-1]["kind"] == "Pod" else objects[-1]


def attempt_of(item: Manifest) -> str:
    """What the annotation `ATTEMPT` says; empty without one."""
    return str((item["metadata"].get("annotations") or {}).get(ATTEMPT, ""))


def number_of(item: Manifest) -> int:
    """The number of the attempt that its annotation names; 0 without one, or if that is wrong."""
    number = attempt_of(item).partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() and len(number) < _DIGITS else 0


def inputs_of(name: str, attempt: str) -> str:
    """What the names of the ConfigMaps and Secrets that an attempt's pods mount begin with."""
    return f"{name}-{attempt}" if attempt else name


def read(item: Manifest) -> About | None:
    """What an object's annotation says; None without one. `ValueError` if it is wrong, as anyone can write one."""
    text = (item["metadata"].get("annotations") or {}).get(NOTE)
    if text is None:
        return None
    try:
        found = numbers.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if wrong := _misfit(found):
        raise ValueError(wrong)
    about: About = found
    return about


def _misfit(found: Any) -> str:
    """What is wrong with the content of an annotation; empty if nothing is."""
    if not isinstance(found, dict):
        return "it is not an object"
    for name in ("kind", "cwd", "python", "user"):
        if not isinstance(found.get(name), str) or "\0" in found[name]:
            return f"{name} is {str(found.get(name))[:40]!r}"
    command = found.get("command")
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        return "command is not a list of words"
    for name in ("nodes", "min_nodes", "workers"):
        if type(found.get(name)) is not int:
            return f"{name} is {str(found.get(name))[:40]!r}"
    if not 0 < found["min_nodes"] <= found["nodes"] <= _MANY_NODES or found["workers"] < 1:
        return f"{found['min_nodes']} to {found['nodes']} nodes of {found['workers']} workers"
    wrong = "" if numbers.is_time(found.get("grace_s")) else f"grace_s is {str(found.get('grace_s'))[:40]!r}"
    return wrong or _misfit_of_roles(found)


def _misfit_of_roles(found: dict[str, Any]) -> str:
    """What is wrong with the roles."""
    roles = found.get("roles", [])
    if not isinstance(roles, list) or not all(isinstance(role, dict) for role in roles):
        return f"roles is {str(roles)[:40]!r}"
    for role in roles:
        name, counts = role.get("name"), [role.get("nodes"), role.get("workers")]
        if not isinstance(name, str) or not re.fullmatch(_ROLE, name):
            return f"the name of a role is {str(name)[:40]!r}"
        if any(type(count) is not int or count < 1 for count in counts):
            return f"role {name} has {counts[0]} nodes of {counts[1]} workers"
        if type(role.get("ignored")) is not bool:
            return f"ignored is {str(role.get('ignored'))[:40]!r}"
    return "" if not roles or sum(role["nodes"] for role in roles) == found["nodes"] else "roles have other nodes"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return str(os.getuid())
