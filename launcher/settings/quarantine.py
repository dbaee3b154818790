"""Hosts that later submissions exclude, by cluster: a file next to the user's settings."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from launcher.errors import StorageError
from launcher.settings import config
from launcher.system import storage, trust

if TYPE_CHECKING:
    from collections.abc import Mapping

QUARANTINE = "quarantine"
"""The value of `stragglers` with which hosts that were slow for most of a run get there, too."""

_FILE = "quarantine.json"


def path(env: Mapping[str, str]) -> str:
    """Path of the list. Raises `StorageError` without a home directory."""
    user = config.user_file(env)
    if user is None:
        raise StorageError("there is no HOME to keep a list of bad hosts in", hint="set XDG_CONFIG_HOME")
    return os.path.join(os.path.dirname(user), _FILE)


def hosts(cluster: str, env: Mapping[str, str]) -> dict[str, str]:
    """The cluster's quarantined hosts with their reasons."""
    if config.user_file(env) is None:
        return {}
    listed = (storage.read_trusted_json("list of bad hosts", path(env)) or {}).get(cluster)
    return {host: str(about.get("reason")) for host, about in listed.items()} if isinstance(listed, dict) else {}


def add(cluster: str, bad: Mapping[str, str], env: Mapping[str, str]) -> None:
    """Add hosts to the list, each with its reason."""
    _change(cluster, {host: {"reason": reason, "time": round(time.time())} for host, reason in bad.items()}, env)


def release(cluster: str, names: tuple[str, ...], env: Mapping[str, str]) -> None:
    """Remove hosts from the list."""
    _change(cluster, dict.fromkeys(names), env)


def _change(cluster: str, changes: Mapping[str, dict[str, Any] | None], env: Mapping[str, str]) -> None:
    file = path(env)
    with storage.storage_errors(file):
        trust.make("the directory of the list of bad hosts", os.path.dirname(file), 0o755)
        whole = storage.read_json(file) or {}
        listed = {**(whole.get(cluster) or {}), **changes}
        whole[cluster] = {host: about for host, about in listed.items() if about is not None}
        storage.write_whole(file, storage.encode_json(whole))
