"""Starts a run again, on the first of its hosts and spares that can take part now."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.backends.ansible.offsets import continue_streams, of_streams
from launcher.backends.ansible.start import forget, on_record, start
from launcher.backends.ansible.stream import FETCH_S, fetch
from launcher.errors import RequestError
from launcher.settings.job_checks import check_secrets_here
from launcher.system import storage

if TYPE_CHECKING:
    from launcher.backends._base import Record
    from launcher.backends.ansible.handle import AnsibleHandle
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
    streams = of_streams(run_dir, handle["nodes"])
    begun: AnsibleHandle = {"run_dir": str(run_dir), "hosts": handle["hosts"], "restarts": handle.get("restarts", 0)}
    begun["streams"] = streams
    record(begun)
    storage.write_whole(run_dir / "ansible/job.json", storage.encode_json(job))
    started = start(run_dir, handle["hosts"], variables["distlaunch_secrets"], login)
    started["restarts"] = begun["restarts"]
    continue_streams(started["nodes"], streams)
    return on_record(started, record)
