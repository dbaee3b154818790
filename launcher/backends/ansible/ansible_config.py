"""Ansible's own settings: the user's file is found as Ansible finds it, and applies unless others could change it."""

from __future__ import annotations

import configparser
import os
import re
from typing import TYPE_CHECKING

from launcher.errors import SpecError
from launcher.system import input_file, trust

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SSH_ARGS = "-o ControlMaster=auto -o ControlPersist=60s -o ServerAliveInterval=5 -o ServerAliveCountMax=4"
"""Ansible's own, without `-C`: ssh would try to compress agents and files again, 0.1 s of CPU time for each host."""

_CODE = re.compile(
    r"(?!run_vars_|load_callback_|enable_)\w+_plugins|library|module_utils|(roles|collections)_paths?|home|playbook_dir"
    r"|\w+_password_file|vault_identity_list|(\w+_)?executable|(ansible_)?connection_path|pkcs11_provider|cow_?path"
)
"""Settings that name code: directories of code, programs, and files that are run if they are executable."""

_OF_THE_WORKING_DIRECTORY = re.compile(r"vault_identity_list|(\w+_)?executable|pkcs11_provider|cow_?path")
"""Those of them that are plain text to Ansible, so not relative to the file that sets them."""

_BOOLEANS = ("y", "yes", "on", "1", "true", "t", "n", "no", "off", "0", "false", "f")
_MANY = 10_000
_OTHER = "; or name a file of your own: ANSIBLE_CONFIG=FILE"


def variables(inventory: Sequence[str], cwd: str, hosts: int) -> dict[str, str]:
    """Ansible's settings as environment variables; its own file still applies, also from the working directory.

    Ansible uses a file that `ANSIBLE_CONFIG` names without checking who could write it; that is checked here.
    """
    path = find(cwd)
    own = _read(path) if path else {}
    settings = {
        "ANSIBLE_FORKS": str(max(hosts, 1)),
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_TIMEOUT": _value(own, "timeout") or "15",
        # ansible-runner would turn it off
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
    """The user's variables that name local paths, made absolute, as the playbook runs elsewhere. Code is checked."""
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
    """Whether a setting names code; `name` is that in a file, or the end of its variable's name."""
    return _CODE.fullmatch(name) is not None


def find(cwd: str) -> str:
    """The user's ansible.cfg, found as Ansible finds it; empty if there is none. Raises `UntrustedError`."""
    places = [os.environ.get("ANSIBLE_CONFIG"), os.path.join(cwd, "ansible.cfg"), os.path.expanduser("~/.ansible.cfg")]
    for place in [*places, "/etc/ansible/ansible.cfg"]:
        path = os.path.join(cwd, _expanded(place)) if place else ""
        path = os.path.join(path, "ansible.cfg") if os.path.isdir(path) else path
        if path and os.path.exists(path):
            trust.require("Ansible's settings", path, more=_OTHER)
            # What it names is next to it.
            trust.require("Ansible's settings are in", os.path.dirname(path), searched=True, more=_OTHER)
            return os.path.normpath(path)
    return ""


def check_inventory(path: str) -> None:
    """Refuse an inventory, or variables next to it, that others could change (it may hold code), or that is a pipe."""
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
                raise SpecError(f"inventory {path!r}: it has more than {_MANY} files, with the variables next to it")
        input_file.check_tree([path, *filter(os.path.isdir, beside)])
    except PermissionError as error:
        raise SpecError(
            f"inventory {path!r}: {error.filename} cannot be read: {error.strerror}", hint=f"ls -ld {error.filename}"
        ) from error
    except OSError as error:
        raise SpecError(f"inventory {path!r}: {os.path.relpath(error.filename)} is {error.strerror}") from error


def _below(tops: Sequence[str]) -> Iterator[str]:
    """Everything below these directories, with links followed, each directory once."""
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
    """The file's sections; the code that it names is checked, too."""
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";",))  # as in Ansible
    try:
        parser.read_string(input_file.read_text(path), path)
    except configparser.Error:
        pass  # Ansible reports it better
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
    """Require that the paths in a setting are trusted."""
    for _, part in [("", value), *_parts(name, value)]:
        path = os.path.join(directory, _expanded(part))
        if _is_path(name, part) and (os.path.isabs(_expanded(part)) or os.path.lexists(path)):
            trust.require(what, os.path.normpath(path), searched=os.path.isdir(path))


def _parts(name: str, value: str) -> list[tuple[str, str]]:
    """The paths of a setting, each with its prefix: `LABEL@` of a vault."""
    parts = [part.strip().strip("\"'") for part in value.split(_separator(name))]
    if name != "vault_identity_list":
        return [("", part) for part in parts]
    return [(label + at, path) if at else ("", label) for label, at, path in (part.partition("@") for part in parts)]


def _separator(name: str) -> str:
    return "," if name == "vault_identity_list" else os.pathsep


def _is_path(name: str, text: str) -> bool:
    """Whether a setting's value is a path; a program without a slash is looked up on PATH."""
    return bool(text) and ("/" in text or not name.endswith("executable"))


def _whole(part: str, cwd: str, name: str) -> str:
    path = os.path.join(cwd, part)
    return path if _is_path(name, part) and os.path.exists(path) else part


def _expanded(text: str) -> str:
    return os.path.expanduser(os.path.expandvars(text.replace("{{CWD}}", os.getcwd())))


def _paths(value: str, separator: str, config: str) -> Iterator[str]:
    """The paths of a setting, made absolute as Ansible does it."""
    for part in filter(None, map(str.strip, value.split(separator))):
        yield os.path.normpath(os.path.join(os.path.dirname(config), _expanded(part)))


def _value(own: Mapping[str, Mapping[str, str]], name: str) -> str | None:
    """What the user has set in the environment or in the file."""
    sections = (own.get("ssh_connection", {}), own.get("defaults", {}))  # in Ansible's order
    return os.environ.get(f"ANSIBLE_{name.upper()}") or next(
        (section[name] for section in sections if name in section), None
    )


def _host_key_checking(own: Mapping[str, Mapping[str, str]], path: str) -> str:
    """The user's setting. Ansible reads any unknown value as no, so a typo would turn the check off: it is refused."""
    value = _value(own, "host_key_checking") or "True"
    if value.strip().lower() not in _BOOLEANS:
        where = path if "ANSIBLE_HOST_KEY_CHECKING" not in os.environ else "ANSIBLE_HOST_KEY_CHECKING"
        raise SpecError(
            f"{where}: host_key_checking {value!r} is neither true nor false",
            hint="a comment starts with a space and ;",
        )
    return value


def _control_directory(inventory: Sequence[str]) -> str:
    """The directory of the shared connections' sockets, one per inventory; short, as a path has at most 107 bytes."""
    import hashlib

    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    base = os.path.join(runtime, "distlaunch") if os.path.isdir(runtime) else f"/tmp/distlaunch-{os.getuid()}"  # noqa: S108 - checked
    return os.path.join(base, hashlib.sha256("\0".join(inventory).encode(errors="surrogateescape")).hexdigest()[:8])
