"""Ansible's own settings: the user's file is found as Ansible finds it, and stays in force, unless others could change it."""

from __future__ import annotations

import configparser
import os
import re
from typing import TYPE_CHECKING

from launcher.errors import SpecError
from launcher.system import input_file, trust

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SSH_ARGS = "-C -o ControlMaster=auto -o ControlPersist=60s -o ServerAliveInterval=5 -o ServerAliveCountMax=4"
_CODE = re.compile(
    r"(?!run_vars_|load_callback_|enable_)\w+_plugins|library|module_utils|(roles|collections)_paths?|home|playbook_dir"
    r"|\w+_password_file|vault_identity_list|(\w+_)?executable|(ansible_)?connection_path|pkcs11_provider|cow_?path"
)
"""Settings that name code: directories of it, programs, and files that are run where they are executable."""

_OF_THE_WORKING_DIRECTORY = re.compile(r"vault_identity_list|(\w+_)?executable|pkcs11_provider|cow_?path")
"""Those of them that are texts to Ansible, which are not relative to the file that they stand in."""

_BOOLEANS = ("y", "yes", "on", "1", "true", "t", "n", "no", "off", "0", "false", "f")
_MANY = 10_000
_OTHER = "; or name a file of your own: ANSIBLE_CONFIG=FILE"


def variables(inventory: Sequence[str], cwd: str, hosts: int) -> dict[str, str]:
    """Ansible's settings as environment variables; its own file stays in force, also where it lies in the working directory.

    Ansible takes a file that `ANSIBLE_CONFIG` names without a look at who could write it: that is looked at here.
    """
    path = find(cwd)
    own = _read(path) if path else {}
    settings = {
        "ANSIBLE_FORKS": str(max(hosts, 1)),
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_TIMEOUT": _value(own, "timeout") or "15",
        # ansible-runner would switch it off
        "ANSIBLE_HOST_KEY_CHECKING": _host_key_checking(own, path),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": _control_directory(inventory),
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
    """Variables of the user's that name files or directories here, made whole: the playbook runs elsewhere. Code is looked at."""
    found = {}
    for name, value in os.environ.items():
        match = re.fullmatch(r"_?ANSIBLE_(\w+)", name)
        setting = match[1].lower() if match else ""
        if is_code(setting):
            _check_code(setting, value, name, cwd)
        if is_code(setting) or re.fullmatch(r"\w+_(file|path)", setting):
            parts = [before + _whole(part, cwd, setting) for before, part in _parts(setting, value)]
            found[name] = _separator(setting).join(parts)
    return {name: value for name, value in found.items() if value != os.environ[name]}


def is_code(name: str) -> bool:
    """Whether that setting, as in a file or as the end of its variable's name, names code."""
    return _CODE.fullmatch(name) is not None


def find(cwd: str) -> str:
    """The user's ansible.cfg, found as Ansible finds it; empty where there is none. Raises `UntrustedError`."""
    places = [os.environ.get("ANSIBLE_CONFIG"), os.path.join(cwd, "ansible.cfg"), os.path.expanduser("~/.ansible.cfg")]
    for place in [*places, "/etc/ansible/ansible.cfg"]:
        path = os.path.join(cwd, _expanded(place)) if place else ""
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
    directory = os.path.dirname(path)
    trust.require("inventory in", directory, searched=True)
    beside = [os.path.join(directory, name) for name in ("group_vars", "host_vars")]
    try:
        for number, inner in enumerate(_below([path, *beside])):
            trust.require("inventory", inner, searched=os.path.isdir(inner))
            if number > _MANY:
                raise SpecError(f"inventory {path!r}: there are more than {_MANY} files in it, or of variables beside it")
        input_file.check_tree([path, *filter(os.path.isdir, beside)])
    except PermissionError as error:
        raise SpecError(
            f"inventory {path!r}: {error.filename} cannot be read: {error.strerror}", hint=f"ls -ld {error.filename}"
        ) from error
    except OSError as error:
        raise SpecError(f"inventory {path!r}: {os.path.relpath(error.filename)} is {error.strerror}") from error


def _below(tops: Sequence[str]) -> Iterator[str]:
    """All that is in these directories, links followed, each directory once."""
    ahead, seen = list(tops), set()
    while ahead:
        directory = ahead.pop()
        real = os.path.realpath(directory)
        if real in seen or not os.path.isdir(directory):
            continue
        seen.add(real)
        for name in os.listdir(directory):
            yield os.path.join(directory, name)
            ahead.append(os.path.join(directory, name))


def _read(path: str) -> dict[str, dict[str, str]]:
    """Its sections; directories with code that it names are held to the rule, too."""
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";",))  # as Ansible has it
    try:
        parser.read_string(input_file.read_text(path), path)
    except configparser.Error:
        pass  # Ansible says it better
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}") from error
    sections = {name: dict(parser[name]) for name in parser.sections()}
    for name, value in ((name, value) for section in sections.values() for name, value in section.items()):
        if is_code(name):
            _check_code(
                name,
                value,
                f"{name} of {path},",
                os.getcwd() if _OF_THE_WORKING_DIRECTORY.fullmatch(name) else os.path.dirname(path),
            )
    return sections


def _check_code(name: str, value: str, what: str, directory: str) -> None:
    """Hold what a setting names to the rule."""
    for _, part in [("", value), *_parts(name, value)]:
        path = os.path.join(directory, _expanded(part))
        if _is_path(name, part) and (os.path.isabs(_expanded(part)) or os.path.lexists(path)):
            trust.require(what, os.path.normpath(path), searched=os.path.isdir(path))


def _parts(name: str, value: str) -> list[tuple[str, str]]:
    """The paths of a setting, each with what stands before it: `LABEL@` of a vault."""
    parts = [part.strip().strip("\"'") for part in value.split(_separator(name))]
    if name != "vault_identity_list":
        return [("", part) for part in parts]
    return [(label + at, path) if at else ("", label) for label, at, path in (part.partition("@") for part in parts)]


def _separator(name: str) -> str:
    return "," if name == "vault_identity_list" else os.pathsep


def _is_path(name: str, text: str) -> bool:
    """A program without a slash is looked for along PATH."""
    return bool(text) and ("/" in text or not name.endswith("executable"))


def _whole(part: str, cwd: str, name: str) -> str:
    path = os.path.join(cwd, part)
    return path if _is_path(name, part) and os.path.exists(path) else part


def _expanded(text: str) -> str:
    return os.path.expanduser(os.path.expandvars(text.replace("{{CWD}}", os.getcwd())))


def _paths(value: str, separator: str, config: str) -> Iterator[str]:
    """The paths of a setting, as Ansible makes them whole."""
    for part in filter(None, map(str.strip, value.split(separator))):
        yield os.path.normpath(os.path.join(os.path.dirname(config), _expanded(part)))


def _value(own: Mapping[str, Mapping[str, str]], name: str) -> str | None:
    """What the user has set, in the environment or in the file."""
    sections = (own.get("ssh_connection", {}), own.get("defaults", {}))  # in the order that Ansible has
    return os.environ.get(f"ANSIBLE_{name.upper()}") or next((section[name] for section in sections if name in section), None)


def _host_key_checking(own: Mapping[str, Mapping[str, str]], path: str) -> str:
    """The user's setting: to Ansible every word that it does not know means no, which nobody wants by a slip."""
    value = _value(own, "host_key_checking") or "True"
    if value.strip().lower() not in _BOOLEANS:
        where = path if "ANSIBLE_HOST_KEY_CHECKING" not in os.environ else "ANSIBLE_HOST_KEY_CHECKING"
        raise SpecError(
            f"{where}: host_key_checking {value!r} is neither true nor false", hint="a comment begins with a blank and ;"
        )
    return value


def _control_directory(inventory: Sequence[str]) -> str:
    """Where the shared connections' sockets are: a short path (they have at most 107 bytes), one per inventory."""
    import hashlib

    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    base = os.path.join(runtime, "distlaunch") if os.path.isdir(runtime) else f"/tmp/distlaunch-{os.getuid()}"  # noqa: S108 - checked
    return os.path.join(base, hashlib.sha256("\0".join(inventory).encode(errors="surrogateescape")).hexdigest()[:8])
