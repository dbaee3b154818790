"""What a run on Slurm would be: the job file, and the spec that its agents read; asks nothing of Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.backends import _warm
from launcher.backends._interpreter import needed
from launcher.backends._plan import PlannedNode
from launcher.backends._roles import names_of, parts_of_nodes, with_roles
from launcher.backends.slurm import allocation, components, one_file, run_files, script, words
from launcher.backends.slurm import placed as places
from launcher.backends.slurm.plan import SlurmPlan
from launcher.errors import SpecError
from launcher.payload import project, scripts
from launcher.runs import directories
from launcher.spec import NodeRange, parse_duration
from launcher.system.dataclass import replace

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.agent.messages import Rendezvous
    from launcher.backends.slurm.allocation import Allocation
    from launcher.backends.slurm.options import SlurmOptions
    from launcher.backends.slurm.site import Site
    from launcher.spec import JobSpec


def plan(opts: SlurmOptions, site: Site, within: Allocation | None, spec: JobSpec, run_dir: Path) -> SlurmPlan:
    """The job file and the spec, made without a query to Slurm."""
    if within and spec.all_nodes:
        spec = replace(spec, nodes=NodeRange(min=within.nodes, max=within.nodes))
    _check_claim(spec, site)
    _warm.refuse(spec, "Slurm ends all that a step leaves on its nodes")
    tasks = _tasks(opts, spec, within)
    nodes = allocation.nodes_of(spec.nodes, within) if within else spec.nodes.max
    where, placed = site.directory(run_dir), places.find(spec, opts, site, directories.root_of(run_dir))
    lead_s = parse_duration(opts.lead, "lead")
    meet: Rendezvous = {"file": str(where / "rendezvous.json")}
    job = spec.job(run=run_dir.name, directory=str(where), rendezvous=meet)._replace(
        command=placed.command(spec, where),
        cwd=placed.start(spec.cwd, where),
        output_dir=placed.start(spec.cwd, where) if placed.script else spec.cwd,
        max_nodes=nodes,
        project=project.name_of(spec.cwd) if placed.script and opts.project_dir and not opts.snapshot else None,
        signals_reach_workers=True,
        end_signal="SIGURG",
        lead_s=lead_s,
        time_limit_s=spec.time_limit_s if within else None,  # Slurm enforces that of a job of its own
        array=bool(tasks),
    )
    job = with_roles(job, spec, lambda part: {"command": placed.command(part, where)})
    python = spec.python or ("python3" if opts.container_image else run_files.default_python(site, needed(spec)[0]))

    def text(directory: Path) -> str:
        agent = (python, "-u", str(directory / "agent.pyz"), "--spec", str(directory / "spec.json"), "--slurm")
        # `work` is not there before the agents are.
        cwd = opts.remote_dir if placed.script and directory == where else placed.start(spec.cwd, directory)
        how: dict[str, Any] = {"cwd": cwd, "within": within, "lead_s": lead_s}
        if directory == where and not site.has_shell:
            how["out"] = one_file.output_file(opts.remote_dir, run_dir.name, array=bool(tasks))
        return script.render(spec, opts, run_dir.name, directory, agent, **how)

    bundled = any(part.kind == "script" and scripts.is_bundled(part.command[0]) for part in spec.parts)
    return SlurmPlan(
        run_dir=run_dir, directory=where, text=text(where), by_hand=text(script.MOVED), job=job,
        nodes=_rows(spec, nodes), bundled=bundled and not placed.script, name=spec.name, within=within, placed=placed,
        tasks=tasks, partitions=components.partitions(spec, opts),
    )  # fmt: skip


def _rows(spec: JobSpec, nodes: int) -> tuple[PlannedNode, ...]:
    """The plan's table; without roles, an allocation may have fewer nodes than an elastic run could use."""
    parts, roles = parts_of_nodes(spec)[:nodes], names_of(spec)
    given = [None if part.workers_per_node == "auto" else part.workers_per_node for part in parts]
    return tuple(
        PlannedNode(node_rank=rank, host="Slurm's choice", workers=workers, role=roles[rank])
        for rank, workers in enumerate(given)
    )


def _check_claim(spec: JobSpec, site: Site) -> None:
    """Raise `SpecError` for a run that waits for its claim, if it cannot be told."""
    if spec.agents.get("claim") and not site.has_shell:
        raise SpecError(
            "a run that waits until it may start has to be told, and login_shell = 'none' allows single commands only",
            hint="name this cluster alone",
        )


def _tasks(opts: SlurmOptions, spec: JobSpec, within: Allocation | None) -> tuple[int, ...]:
    """The indices of a job array; empty without one."""
    tasks = words.indices(opts.array) if opts.array else ()
    if tasks and spec.roles:
        raise SpecError("--array with roles: Slurm has no arrays of heterogeneous jobs", hint="launch them one by one")
    if within and spec.roles:
        components.check_allocation(spec, opts, within)
    if within and tasks:
        raise SpecError(
            f"--array inside job {within.job_id}: a step cannot be an array",
            hint="submit jobs of its own with --new-job",
        )
    if tasks and spec.wants_keyboard:
        raise SpecError(
            "--interactive with --array: many runs cannot share one keyboard", hint="run one of its tasks alone"
        )
    return tasks
