"""The `JobSpec` that options ask for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher.spec import JobSpec, NodeRange, parse_duration, parse_env, parse_log_limit, parse_workers, run_name

if TYPE_CHECKING:
    from launcher.settings.options import JobOptions
    from launcher.spec import Kind


def from_options(options: JobOptions, command: tuple[str, ...], *, kind: Kind, cwd: str) -> JobSpec:
    """The `JobSpec` for options whose values were checked (`config.check`)."""
    script = command[0] if command else ""
    stem = script.rpartition(".")[2] if kind == "module" else os.path.splitext(os.path.basename(script))[0]
    return JobSpec(
        name=run_name(options.name or stem),
        command=command,
        kind=kind,
        nodes=NodeRange.parse(options.nodes or "1"),
        all_nodes=not options.nodes,
        workers_per_node=parse_workers(options.nproc_per_node),
        cwd=cwd,
        python=options.python,
        env=parse_env(options.env, os.environ),
        secrets=options.secret,
        ship_secrets=options.ship_secrets,
        start="spawn" if options.start == "spawn" else "fork",
        preload=options.preload,
        max_restarts=options.max_restarts,
        time_limit_s=parse_duration(options.time, "time") if options.time else None,
        grace_s=parse_duration(options.grace, "grace"),
        rdzv_timeout_s=parse_duration(options.rdzv_timeout, "rdzv-timeout"),
        peer_timeout_s=parse_duration(options.peer_timeout, "peer-timeout"),
        master_port=options.master_port,
        role=options.role,
        numa_binding=options.numa_binding,
        near_nics=options.near_nics,
        virtual_local_rank=options.virtual_local_rank,
        log_limit_bytes=parse_log_limit(options.log_limit),
    )
