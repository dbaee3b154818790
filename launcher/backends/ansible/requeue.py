"""Starts a run again, on the first of its hosts and spares that can take part now."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.backends.ansible.start import forget, on_record, start
from launcher.backends.ansible.stream import FETCH_S, fetch
from launcher.errors import RequestError
from launcher.settings.job_checks import check_secrets_here
from launcher.system import storage

if TYPE_CHECKING:
    from launcher.backends._base import Record
    from launcher.backends.ansible.handle import AnsibleHandle, Node
    from launcher.backends.ansible.options import AnsibleOptions
    from launcher.login.connection import Login


def requeue(
    opts: AnsibleOptions, handle: AnsibleHandle, attempt: int, record: Record, login: Login | None
) -> AnsibleHandle:
    """Start the run again as this attempt; `record` as in `Backend.requeue`."""
    run_dir = Path(handle["run_dir"])
    if "running" in (tail.state for tail in fetch(handle, FETCH_S)):
        raise RequestError("its agents still run", hint=f"distlaunch cancel {run_dir.name}")
    if not (run_dir / "ansible/job.json").exists():
        from launcher.backends.ansible import restoring  # only for a run that another launcher has started

        restoring.restore(opts, handle, os.getcwd(), login)
    job = storage.read_json(run_dir / "ansible/job.json") or {}
    variables = storage.read_json(run_dir / "ansible/env/extravars") or {}
    check_secrets_here(variables["distlaunch_secrets"])
    if login:
        variables["distlaunch_proxy"] = login.proxy_command()
        storage.write_whole(run_dir / "ansible/env/extravars", storage.encode_json(variables))
    ended = storage.read_json(run_dir / "result.json") or {}
    job |= {"attempt": attempt, "why_again": str(ended.get("state") or "failed")}
    forget(run_dir)
    here = {path.parent.name: path.stat().st_size for path in (run_dir / "nodes").glob("*/stream")}
    begun: AnsibleHandle = {"run_dir": str(run_dir), "hosts": handle["hosts"], "restarts": handle.get("restarts", 0)}
    record(begun)
    storage.write_whole(run_dir / "ansible/job.json", storage.encode_json(job))
    started = start(run_dir, handle["hosts"], variables["distlaunch_secrets"], login)
    started["restarts"] = begun["restarts"]
    before = {(node["host"], node["rank"]): node for node in handle["nodes"]}
    for node in started["nodes"]:
        known = before.get((node["host"], node["rank"]))
        node["stream_from"] = _stream_from(node, known, here.get(str(node["rank"]), 0))
    return on_record(started, record)


def _stream_from(node: Node, known: Node | None, size: int) -> tuple[int, int]:
    """Where the node's stream begins, here and on its host; `size`: of what is here of it.

    A host that had the node before continues its stream, unless it has lost that since, as in memory at a reboot.
    """
    begins = int(node["agent"]["stream_from"])
    here, there = known.get("stream_from", (0, 0)) if known is not None else (size, begins)
    return (here, there) if begins >= there + size - here else (size, begins)
