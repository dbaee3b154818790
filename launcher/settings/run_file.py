"""What the roles of a run are to be: a run file with `[roles.NAME]`, or `NAME:NODES:SCRIPT` on the command line."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

from launcher.agent import roles
from launcher.agent.named_tuple import NamedTuple
from launcher.errors import ConfigError, SpecError
from launcher.settings.config import Setting, checked, field_types
from launcher.settings.options import JobOptions
from launcher.settings.paths import anchored
from launcher.settings.toml_file import read_file
from launcher.system import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from launcher.settings.toml_file import ConfigFile

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?\Z")
_OF_JOB = (
    *("nodes", "nproc_per_node", "contract", "ps", "env", "no_python", "max_restarts", "start_method", "preload"),
    *("numa_binding", "near_nics", "virtual_local_rank"),
)
"""Options of the job that each role may have of its own."""

_OWN: dict[str, type] = {"script": str, "module": bool, "args": tuple, "on_failure": str, "serves": bool}
"""Keys that only a role has, with their types."""


class RoleRequest(NamedTuple):
    """One role, as it was asked for."""

    name: str
    where: str
    """The place of each of its errors."""

    script: str
    args: tuple[str, ...]
    module: bool
    on_failure: str
    serves: bool
    values: Mapping[str, Setting]
    """Its options of the job and of the backend."""


def split(given: Any) -> tuple[str | None, list[str]]:
    """The values of `--role`: ROLE_NAME, and the roles that are given as NAME:NODES:SCRIPT."""
    words = [given] if isinstance(given, str) else list(given or [])
    plain = [word for word in words if word.count(":") < 2]
    return (plain[-1] if plain else None), [word for word in words if word not in plain]


def of_words(words: Iterable[str]) -> list[RoleRequest]:
    """The roles in `NAME:NODES:SCRIPT`, where SCRIPT may be followed by arguments. Raises `SpecError`."""
    found = []
    for word in words:
        name, nodes, command = word.split(":", 2)
        try:
            script, *args = shlex.split(command) or [""]
        except ValueError as error:
            raise SpecError(f"--role {name}: {error}") from None
        where = f"--role {name}"
        if not nodes:
            raise SpecError(f"{where}: role {name} has no nodes", hint="--role NAME:NODES:SCRIPT")
        values = {"nodes": Setting(nodes, where, (Setting(nodes, where),))}
        found.append(RoleRequest(name, where, script, tuple(args), False, roles.END, False, values))
    return _checked(found)


def read(path: str, backend_options: type) -> list[RoleRequest]:
    """The roles of a run file, in its order; options of the backend that a role may have are its own `per_role`.

    Raises `ConfigError`, with the line.
    """
    file = read_file(path, what="run file")
    if file is None:
        raise ConfigError(f"roles: no file {path}", hint="write [roles.NAME] with nodes and script into one")
    for key in file.values:
        if key != "roles":
            hint = "a run file has [roles.NAME]; other options are given on the command line or in the settings"
            raise ConfigError(f"{file.where(key)}: unknown key {key!r} at the top level", hint=hint)
    tables = file.tables("roles")
    if not tables:
        raise ConfigError(f"{path}: no roles", hint="write [roles.NAME] with nodes and script")
    return _checked([_of_table(file, name, table, backend_options) for name, table in tables.items()])


def _of_table(file: ConfigFile, name: str, table: Mapping[str, Any], backend_options: type) -> RoleRequest:
    of_backend = getattr(backend_options, "per_role", ())
    every = {**field_types(JobOptions), **field_types(backend_options)}
    types = {key: every[key] for key in (*_OF_JOB, *of_backend)}
    for key in table:
        if key in every and key not in types:
            hint = f"it is the same for all roles: --{key.replace('_', '-')}"
            raise ConfigError(f"{file.where('roles', name, key)}: a role cannot have its own {key}", hint=hint)
    found = checked(file, ("roles", name), table, {**_OWN, **types})
    where = file.where("roles", name)
    own = {key: found.pop(key).value for key in _OWN if key in found}
    if "script" not in own:
        raise ConfigError(f"{where}: role {name} has no script", hint='script = "train.py"')
    if "nodes" not in found:
        raise ConfigError(f"{where}: role {name} has no nodes", hint="nodes = 2")
    paths = anchored({key: item.value for key, item in found.items()}, file.directory, JobOptions, backend_options)
    values = {key: Setting(paths[key], item.source, file=file.path) for key, item in found.items()}
    values = {key: Setting(item.value, item.source, (item,), item.file) for key, item in values.items()}
    how = own.get("on_failure", roles.END)
    if how not in roles.ON_FAILURE:
        at = file.where("roles", name, "on_failure")
        raise ConfigError(f"{at}: on_failure {how!r} is not known", hint=names.hint(how, roles.ON_FAILURE))
    if how != roles.RESTART and "max_restarts" in found:
        at = file.where("roles", name, "max_restarts")
        hint = f'write on_failure = "{roles.RESTART}", too'
        raise ConfigError(f"{at}: max_restarts: the role {name} never starts again", hint=hint)
    args = own.get("args", ())
    return RoleRequest(
        name, where, own["script"], args, own.get("module", False), how, own.get("serves", False), values
    )


def _checked(found: list[RoleRequest]) -> list[RoleRequest]:
    """Raise `SpecError` for roles that no run can have."""
    for role in found:
        if not _NAME.match(role.name):
            hint = "give lower-case letters, digits and dashes, beginning with a letter and not ending with a dash"
            raise SpecError(f"{role.where}: role {role.name!r} is not a name", hint=hint)
        if not role.script:
            raise SpecError(f"{role.where}: role {role.name} has no script", hint="--role NAME:NODES:SCRIPT")
        if [other.name for other in found].count(role.name) > 1:
            raise SpecError(f"{role.where}: there are two roles of the name {role.name}")
    if found and all(role.serves for role in found):
        hint = "leave out serves for the one with whose end the run ends"
        raise SpecError("roles: each of them serves the others, so the run would never end", hint=hint)
    return found
