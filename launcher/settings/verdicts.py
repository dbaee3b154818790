"""Doctor's last verdict about each host, by cluster: a file next to the user's settings."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from launcher.settings import config, quarantine
from launcher.system import numbers, storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.results.cluster import HostFinding, Verdict

_FILE = "doctor.json"
_KEPT_S = 365 * 86400.0
"""Verdicts that are older than this are removed: hosts get new names."""


def path(env: Mapping[str, str]) -> str:
    """Path of the file. Raises `StorageError` without a home directory."""
    return os.path.join(os.path.dirname(quarantine.path(env)), _FILE)


def of(cluster: str, env: Mapping[str, str]) -> dict[str, Verdict]:
    """The last verdicts about the hosts of this cluster, or of this backend without a cluster."""
    if config.user_file(env) is None:
        return {}
    listed = (storage.read_trusted_json("doctor's last verdicts", path(env)) or {}).get(cluster)
    found = listed.items() if isinstance(listed, dict) else ()
    return {host: verdict for host, about in found if (verdict := _verdict(about)) is not None}


def note(cluster: str, found: Mapping[str, Verdict], env: Mapping[str, str]) -> None:
    """Record these verdicts, in place of earlier ones about the same hosts."""
    with quarantine.changing("list of doctor's last verdicts", path(env)) as whole:
        since = time.time() - _KEPT_S
        kept = {
            host: about
            for host, about in whole.get(cluster, {}).items()
            if (verdict := _verdict(about)) is not None and verdict["time"] > since
        }
        whole[cluster] = {**kept, **found}


def _verdict(about: Any) -> Verdict | None:
    """A verdict of the file, if it is one."""
    if not isinstance(about, dict) or about.get("status") not in ("ok", "warn", "fail"):
        return None
    if not (numbers.is_time(about.get("time")) and isinstance(about.get("findings"), list)):
        return None
    findings: list[HostFinding] = [
        {"check": str(each.get("check")), "status": each["status"], "reason": str(each.get("reason"))}
        for each in about["findings"]
        if isinstance(each, dict) and each.get("status") in ("warn", "fail")
    ]
    run = str(about.get("run") or "")
    return {"time": float(about["time"]), "run": run, "status": about["status"], "findings": findings}
