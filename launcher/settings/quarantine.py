"""Hosts that later submissions exclude, by cluster: a file next to the user's settings."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import StorageError
from launcher.runs import lock
from launcher.settings import config
from launcher.system import numbers, storage, trust

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

QUARANTINE = "quarantine"
"""The value of `stragglers` with which hosts that were slow for most of a run get there, too."""

_FILE = "quarantine.json"
_WHAT = "list of bad hosts"
_LOCK_S = 10.0
"""Others change the list in an instant."""


def path(env: Mapping[str, str]) -> str:
    """Path of the list. Raises `StorageError` without a home directory."""
    user = config.user_file(env)
    if user is None:
        raise StorageError("there is no HOME to keep a list of bad hosts in", hint="set XDG_CONFIG_HOME")
    return os.path.join(os.path.dirname(user), _FILE)


def hosts(cluster: str, env: Mapping[str, str]) -> dict[str, str]:
    """The cluster's quarantined hosts with their reasons. Raises `StorageError` if the file is damaged."""
    if config.user_file(env) is None:
        return {}
    return {host: str(about.get("reason")) for host, about in _read(_WHAT, path(env)).get(cluster, {}).items()}


def add(cluster: str, bad: Mapping[str, str], env: Mapping[str, str]) -> None:
    """Add hosts to the list, each with its reason."""
    _change(cluster, {host: {"reason": reason, "time": round(time.time())} for host, reason in bad.items()}, env)


def release(cluster: str, names: tuple[str, ...], env: Mapping[str, str]) -> None:
    """Remove hosts from the list."""
    _change(cluster, dict.fromkeys(names), env)


def _change(cluster: str, changes: Mapping[str, dict[str, Any] | None], env: Mapping[str, str]) -> None:
    file = path(env)
    with changing(_WHAT, file) as whole:
        listed = {**whole.get(cluster, {}), **changes}
        whole[cluster] = {host: about for host, about in listed.items() if about is not None}


@contextmanager
def changing(what: str, file: str) -> Iterator[dict[str, dict[str, Any]]]:
    """The hosts of all clusters in such a file, written in the end. Only one process at a time changes it."""
    locked = Path(file).with_suffix(".lock")
    trust.make(f"the directory of the {what}", os.path.dirname(file), 0o755)
    trust.make(f"the lock of the {what}", locked)
    with lock.hold(locked, "doctor", wait_s=_LOCK_S):
        whole = _read(what, file)
        yield whole
        storage.write_whole(file, storage.encode_json(whole))


def _read(what: str, file: str) -> dict[str, dict[str, Any]]:
    """The hosts of all clusters. A damaged file is an error: else bad hosts would be used, or its content replaced."""
    try:
        with storage.read_errors(file):
            whole = numbers.loads(trust.read(what, file))
    except StorageError:
        if not os.path.lexists(file):
            return {}
        raise
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, dict) and all(map(_is_table, whole.values())):
        return whole
    raise StorageError(f"{file} is damaged: it is no {what}", hint="correct or remove it")


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(about, dict) for about in value.values())
