"""Make a `JobSpec` from options."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from launcher.errors import SpecError
from launcher.settings.job_checks import parse_env
from launcher.spec import JobSpec, NodeRange, parse_duration, parse_workers, run_name
from launcher.system.dataclass import fields, replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.settings.options import JobOptions
    from launcher.spec import Kind


def from_options(options: JobOptions, command: tuple[str, ...], *, kind: Kind, cwd: str) -> JobSpec:
    """The `JobSpec` for options whose values were checked (`checks.check`)."""
    script = command[0] if command else ""
    _check_contract(options)
    stem = script.rpartition(".")[2] if kind == "module" else os.path.splitext(os.path.basename(script))[0]
    return JobSpec(
        name=run_name(options.name or stem),
        command=command,
        kind=kind,
        nodes=NodeRange.parse(options.nodes or "1"),
        all_nodes=not options.nodes,
        workers_per_node=parse_workers(options.nproc_per_node),
        cwd=cwd,
        python=options.python or None,
        env=parse_env(options.env, os.environ),
        secrets=options.secret,
        ship_secrets=options.ship_secrets,
        links="follow" if options.links == "follow" else "refuse" if options.links == "refuse" else "keep",
        start="spawn" if options.start_method == "spawn" else "fork",
        preload=options.preload,
        time_limit_s=parse_duration(options.time, "time") if options.time else None,
        grace_s=parse_duration(options.grace, "grace"),
        agents=dict(passed_on(options)),
    )


def _check_contract(options: JobOptions) -> None:
    """Raise `SpecError` for what the contract cannot start."""
    from launcher.agent import contracts

    nodes, workers = NodeRange.parse(options.nodes or "1"), parse_workers(options.nproc_per_node)
    if nodes.elastic and options.contract != "torchrun":
        raise SpecError(f"nodes {nodes}: only --contract torchrun can be elastic", hint=f"--nodes {nodes.max}")
    tasks = nodes.max * workers if options.nodes and workers != "auto" and not options.workers else None
    try:
        contracts.load(options.contract).check(options.ps, tasks)
    except ValueError as error:
        raise SpecError(str(error)) from None


def of_workers(spec: JobSpec, total: int, per_node: int | None) -> JobSpec:
    """The job with as many nodes as that many workers take. Raises `SpecError` if they do not fit."""
    if not per_node:
        hint = "--nproc-per-node M, or gpus_per_node of the cluster"
        raise SpecError(f"--workers {total}: the number of workers per node is not known", hint=hint)
    nodes, rest = divmod(total, per_node)
    if rest:
        hint = f"ask for {(nodes + 1) * per_node}, or for another number per node"
        raise SpecError(f"--workers {total}: nodes with {per_node} workers each have not this many", hint=hint)
    return replace(spec, nodes=NodeRange(min=nodes, max=nodes), all_nodes=False)


def passed_on(options: JobOptions) -> Iterator[tuple[str, Any]]:
    """Fields of the agents' `Job` with their values from the options."""
    for field in fields(options):
        name, value, check = field.metadata["job"], getattr(options, field.name), field.metadata["check"]
        if name:
            yield name, check(value) if check else value
