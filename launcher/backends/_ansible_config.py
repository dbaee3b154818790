"""Ansible's own settings: the user's file is found as Ansible finds it, and stays in force, unless others could change it."""

from __future__ import annotations

import configparser
import os
import re
from typing import TYPE_CHECKING

from launcher import input_file, trust
from launcher.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SSH_ARGS = "-C -o ControlMaster=auto -o ControlPersist=60s -o ServerAliveInterval=5 -o ServerAliveCountMax=4"
_CODE = ("library", "module_utils", "roles_path", "collections_path", "collections_paths")
"""Settings beside `*_plugins` that name folders with code."""

_MANY = 10_000
_OTHER = "; or name a file of your own: ANSIBLE_CONFIG=FILE"


def variables(inventory: Sequence[str], cwd: str, hosts: int) -> dict[str, str]:
    """Ansible's settings as environment variables; its own file stays in force, also where it lies in the working folder.

    Ansible takes a file that `ANSIBLE_CONFIG` names without a look at who could write it: that is looked at here.
    """
    path = find(cwd)
    own = _read(path) if path else {}
    settings = {
        "ANSIBLE_FORKS": str(max(hosts, 1)),
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_TIMEOUT": _value(own, "timeout") or "15",
        # ansible-runner would switch it off
        "ANSIBLE_HOST_KEY_CHECKING": _value(own, "host_key_checking") or "True",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": _control_folder(inventory),
        "ANSIBLE_RETRY_FILES_ENABLED": "0",
        "ANSIBLE_LOCALHOST_WARNING": "0",
        "ANSIBLE_DEPRECATION_WARNINGS": "0",
        "ANSIBLE_NOCOLOR": "1",
    }
    settings |= _whole_variables(cwd)
    if path:
        settings["ANSIBLE_CONFIG"] = path
    if "ssh_args" not in own.get("ssh_connection", {}) and "ANSIBLE_SSH_ARGS" not in os.environ:
        settings["ANSIBLE_SSH_ARGS"] = _SSH_ARGS
    if not inventory:
        for source in _paths(own.get("defaults", {}).get("inventory", "/etc/ansible/hosts"), ",", path):
            check_inventory(source)
    return settings


def _whole_variables(cwd: str) -> dict[str, str]:
    """Variables of the user's that name files or folders here: the playbook runs elsewhere."""
    found = {}
    for name, value in os.environ.items():
        if re.fullmatch(r"ANSIBLE_(LIBRARY|\w+_(FILE|PATH|PLUGINS))", name):
            parts = [
                os.path.join(cwd, part) if part and os.path.exists(os.path.join(cwd, part)) else part for part in value.split(":")
            ]
            found[name] = ":".join(parts)
    return {name: value for name, value in found.items() if value != os.environ[name]}


def find(cwd: str) -> str:
    """The user's ansible.cfg, found as Ansible finds it; empty where there is none. Raises `UntrustedError`."""
    places = [os.environ.get("ANSIBLE_CONFIG"), os.path.join(cwd, "ansible.cfg"), os.path.expanduser("~/.ansible.cfg")]
    for place in [*places, "/etc/ansible/ansible.cfg"]:
        path = os.path.join(cwd, os.path.expanduser(place)) if place else ""
        path = os.path.join(path, "ansible.cfg") if os.path.isdir(path) else path
        if path and os.path.exists(path):
            trust.require("Ansible's settings", path, more=_OTHER)
            # What it names is beside it.
            trust.require("Ansible's settings are in", os.path.dirname(path), searched=True, more=_OTHER)
            return os.path.normpath(path)
    return ""


def check_inventory(path: str) -> None:
    """Refuse an inventory, and variables beside it, that others could change: they may hold code. And what is waited for."""
    if not os.path.exists(path):
        return
    trust.require("inventory", path)
    folder = os.path.dirname(path)
    trust.require("inventory in", folder, searched=True)
    beside = [os.path.join(folder, name) for name in ("group_vars", "host_vars")]
    try:
        input_file.check_tree([path, *filter(os.path.isdir, beside)])
    except OSError as error:
        raise SpecError(f"inventory {path!r}: {os.path.relpath(error.filename)} is {error.strerror}") from error
    for number, inner in enumerate(_below([path, *beside])):
        trust.require("inventory", inner, searched=os.path.isdir(inner))
        if number > _MANY:
            raise SpecError(f"inventory {path!r}: there are more than {_MANY} files in it, or of variables beside it")


def _below(tops: Sequence[str]) -> Iterator[str]:
    """All that is in these folders, links followed, each folder once."""
    ahead, seen = list(tops), set()
    while ahead:
        folder = ahead.pop()
        real = os.path.realpath(folder)
        if real in seen or not os.path.isdir(folder):
            continue
        seen.add(real)
        for name in os.listdir(folder):
            yield os.path.join(folder, name)
            ahead.append(os.path.join(folder, name))


def _read(path: str) -> dict[str, dict[str, str]]:
    """Its sections; folders with code that it names are held to the rule, too."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(input_file.read_text(path), path)
    except configparser.Error:
        pass  # Ansible says it better
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}") from error
    sections = {name: dict(parser[name]) for name in parser.sections()}
    for name, value in sections.get("defaults", {}).items():
        if name in _CODE or name.endswith("_plugins"):
            for folder in _paths(value, os.pathsep, path):
                trust.require(f"{name} of {path},", folder, searched=True)
    return sections


def _paths(value: str, separator: str, config: str) -> Iterator[str]:
    """The paths of a setting, as Ansible makes them whole."""
    for part in filter(None, map(str.strip, value.split(separator))):
        text = os.path.expanduser(os.path.expandvars(part.replace("{{CWD}}", os.getcwd())))
        yield os.path.normpath(os.path.join(os.path.dirname(config), text))


def _value(own: Mapping[str, Mapping[str, str]], name: str) -> str | None:
    """What the user has set, in the environment or in the file."""
    sections = (own.get("defaults", {}), own.get("ssh_connection", {}))
    return os.environ.get(f"ANSIBLE_{name.upper()}") or next((section[name] for section in sections if name in section), None)


def _control_folder(inventory: Sequence[str]) -> str:
    """Where the shared connections' sockets are: a short path (they have at most 107 bytes), one per inventory."""
    import hashlib

    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    base = os.path.join(runtime, "distlaunch") if os.path.isdir(runtime) else f"/tmp/distlaunch-{os.getuid()}"  # noqa: S108 - checked
    return os.path.join(base, hashlib.sha256("\0".join(inventory).encode(errors="surrogateescape")).hexdigest()[:8])
