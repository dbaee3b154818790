"""Inside an allocation the run is a step of the existing job: srun starts it from here, without sbatch."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.agent.schedulers.slurm import expand
from launcher.agent.terminal import attach
from launcher.backends.slurm import inherited, left, steps, words
from launcher.backends.slurm.handle import directory_of
from launcher.backends.slurm.options import OF_SBATCH
from launcher.backends.slurm.states import job_of
from launcher.errors import BackendUnavailableError, CommandError, LaunchError, SpecError
from launcher.system import detached, pipes, proc, storage
from launcher.system.dataclass import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.backends._base import Record
    from launcher.backends.slurm.handle import SlurmHandle
    from launcher.backends.slurm.options import SlurmOptions
    from launcher.backends.slurm.site import Site
    from launcher.runs.liveness import NodeState
    from launcher.spec import NodeRange

_OF_STEPS = ("gpus_per_node", "gres", "mem", "nodelist", "exclude")
_OF_JOBS = (*(name for name in OF_SBATCH if name not in (*_OF_STEPS, "cpus_per_task")), "sbatch")
REACHED_S = 60.0
_ENDED = "step.ended"
"""A file of the run: the step's script has ended, with or without a step. Other hosts do not see its processes."""

_STEP = """read -r && trap : TERM && trap ': >"$1"' EXIT && bash "$0" </dev/null"""
"""Runs the script once its start line is there. A signal to the group does not end this before the script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The job in which this process runs, as Slurm's variables describe it."""

    job_id: str
    nodes: int
    cpus: int | None
    """CPUs of the node with the fewest; None if Slurm does not report them."""

    within_step: bool
    """Whether this process itself runs in a step (`srun --pty bash`), with which ours has to share."""

    groups: tuple[int, ...] = ()
    """Of a heterogeneous job, the groups that are used."""

    sizes: tuple[int, ...] = ()
    """How many nodes each of them has."""

    cpus_of: tuple[int | None, ...] = ()
    """As `cpus`, of each of them."""

    @property
    def one_size(self) -> bool:
        """Whether srun takes the number of nodes: with several groups, it would take it for each of them."""
        return len(self.groups) < 2

    def part(self, number: int) -> Allocation:
        """One of the groups alone."""
        return replace(self, groups=self.groups[number : number + 1], cpus=self.cpus_of[number])


def allocation(env: Mapping[str, str], het_group: str = "") -> Allocation | None:
    """The allocation of `salloc` or of an sbatch script; None on a login node. `het_group`: as the option."""
    size = env.get("SLURM_HET_SIZE", "")
    if env.get("SLURM_JOB_ID") and size.isdigit():
        return _heterogeneous(env, _groups(het_group, int(size)))
    nodes = env.get("SLURM_JOB_NUM_NODES", "")
    if het_group and not env.get("SLURM_JOB_ID"):
        raise SpecError(
            f"het-group {het_group}: this is not inside a job",
            hint="it chooses groups of a heterogeneous job: salloc --nodes=2 : --nodes=1",
        )
    if not env.get("SLURM_JOB_ID") or not nodes.isdigit():
        return None
    if het_group:
        raise SpecError(f"het-group {het_group}: job {env['SLURM_JOB_ID']} is not heterogeneous", hint="leave it out")
    cpus = min(_cpus(env.get("SLURM_JOB_CPUS_PER_NODE", "")), default=None)
    return Allocation(job_id=env["SLURM_JOB_ID"], nodes=int(nodes), cpus=cpus, within_step="SLURM_STEP_ID" in env)


def _cpus(text: str) -> list[int]:
    """The numbers in `16(x2),8`."""
    return [int(count) for count in re.findall(r"(?:^|,)(\d+)", re.sub(r"\(x\d+\)", "", text))]


def _groups(asked: str, size: int) -> tuple[int, ...]:
    """The groups of a heterogeneous job that `0,2` or `0-1` names; all of them without a text."""
    groups = words.indices(asked) if asked else tuple(range(size))
    if groups[-1] >= size:
        raise SpecError(f"het-group {groups[-1]}: the job has {size} groups", hint=f"groups: 0 to {size - 1}")
    return groups


def _heterogeneous(env: Mapping[str, str], groups: tuple[int, ...]) -> Allocation:
    """These groups of a heterogeneous job (`salloc -N2 : -N1`), which one step can span."""
    of_host: dict[str, int] = {}
    cpus = [min(_cpus(env.get(f"SLURM_JOB_CPUS_PER_NODE_HET_GROUP_{group}", "")), default=None) for group in groups]
    hosts = [expand(env.get(f"SLURM_JOB_NODELIST_HET_GROUP_{group}", "")) for group in groups]
    for group, its in zip(groups, hosts, strict=True):
        for host in its:
            if host in of_host:
                raise SpecError(
                    f"{host} is in the groups {of_host[host]} and {group} of job {env['SLURM_JOB_ID']}: a run has one"
                    " agent per host",
                    hint=f"use one of them: --het-group {group}",
                )
            of_host[host] = group
    return Allocation(
        job_id=env["SLURM_JOB_ID"],
        nodes=len(of_host),
        cpus=min(filter(None, cpus), default=None),
        within_step="SLURM_STEP_ID" in env,
        groups=groups,
        sizes=tuple(map(len, hosts)),
        cpus_of=tuple(cpus),
    )


def nodes_of(asked: NodeRange, within: Allocation) -> int:
    """How many of the allocation's nodes the step takes."""
    if asked.min > within.nodes:
        raise SpecError(
            f"{asked.min} nodes: the allocation, job {within.job_id}, has {within.nodes}",
            hint="ask for no more than it has, or submit a job of its own with --new-job",
        )
    if asked.max < within.nodes and not within.one_size:
        raise SpecError(
            f"{asked.max} nodes of the {within.nodes} in {len(within.groups)} groups of job {within.job_id}",
            hint="leave --nodes out to use all, or choose groups: --het-group 0",
        )
    return min(asked.max, within.nodes)


def size(asked: NodeRange, within: Allocation) -> str:
    """The number of nodes for srun; empty if it takes none."""
    nodes = nodes_of(asked, within)
    return str(nodes) if within.one_size else ""


def options(within: Allocation, opts: SlurmOptions, name: str) -> list[str]:
    """The step's own srun options. Without `--cpus-per-task`, its task would not get all CPUs of the job on a node."""
    found = [f"--job-name={name}"]
    found += [f"--het-group={','.join(map(str, within.groups))}"] if within.groups else []
    cpus = opts.cpus_per_task or within.cpus
    found += [f"--cpus-per-task={cpus}"] if cpus else []
    found += [f"--{name.replace('_', '-')}={getattr(opts, name)}" for name in _OF_STEPS if getattr(opts, name)]
    return [*found, *(["--overlap"] if within.within_step else [])]


def useless(opts: SlurmOptions) -> list[str]:
    """The given options that only a new job could have."""
    return [name.replace("_", "-") for name in _OF_JOBS if getattr(opts, name)]


def start(handle: SlurmHandle, cwd: str, within: Allocation, record: Record) -> SlurmHandle:
    """Start the step's script, detached from this terminal."""
    if shutil.which("srun") is None:
        raise BackendUnavailableError(
            "srun is not on PATH", hint=f"job {within.job_id} can be used only where Slurm's commands are"
        )
    run_dir = Path(handle["run_dir"])
    out = run_dir / "job.out"
    argv = ["bash", "-c", _STEP, str(run_dir / "step.sh"), str(run_dir / _ENDED)]

    def about(identity: proc.Identity) -> SlurmHandle:
        srun: SlurmHandle = {**handle, "host": _host(), "pid": identity.pid, "ticks": identity.start_ticks}
        return {**srun, "job_id": within.job_id, "step": run_dir.name}

    def note(identity: proc.Identity) -> None:
        record(about(identity))

    return about(detached.start_detached(argv, cwd=cwd, env=os.environ, stdout=out, stderr=out, record=note))


def state(site: Site, handle: SlurmHandle) -> tuple[NodeState, str]:
    """Running while the step exists, or srun, which may still be waiting for it; then as sacct has it."""
    found: NodeState = "running"
    text = f"a step of job {handle['job_id']}"
    if not _srun_lives(handle):
        try:
            if not steps.of(site, handle):
                if (said := left.state(site, handle)) is None and _may_begin(site, handle):
                    return "unknown", _not_begun(handle)
                return said or ("ended", "")
        except LaunchError:
            found = "unknown"
    return found, text


def send(site: Site, handle: SlurmHandle, *numbers: int) -> None:
    """Signal the step's processes; without a step yet, end the script and its srun, which waits for free nodes.

    Raises `CommandError` if only another host could end these.
    """
    step = steps.of(site, handle)
    for number in numbers if step else ():
        steps.send(site, str(step), number)
    if not step and _srun_lives(handle):
        proc.Identity(handle["pid"], handle["ticks"]).send_group(signal.SIGTERM)
    elif not step and _may_begin(site, handle):
        raise CommandError(
            _not_begun(handle), hint=f"cancel it there, or end its allocation: scancel {handle['job_id']}"
        )


def terminal(
    site: Site, handle: SlurmHandle, directory: Path, node: int, rank: int | None, *, python: str = ""
) -> pipes.ProgramBridge:
    """Connect through a separate step on that node; without a rank, to a new shell.

    `python` replaces an agent's interpreter that is in a container.
    """
    about = storage.read_json(directory / "nodes" / str(node) / "agent.json") or {}
    words = terminal_words(site, handle, about, directory, (node, rank), python=python)
    bridge = pipes.ProgramBridge(words, env=inherited.of_no_job(os.environ))
    bridge.wait_for(attach.CONNECTED, REACHED_S)
    return bridge


def terminal_words(
    site: Site,
    handle: SlurmHandle,
    about: Mapping[str, Any],
    directory: Path,
    which: tuple[int, int | None],
    *,
    python: str,
) -> list[str]:
    """The command for that. `about`: the node's `agent.json`. `directory`: the run's. `which`: node and rank."""
    node, rank = which
    job, host = str(about.get("job") or job_of(handle)), str(about.get("node"))
    group = str(about.get("group") or "")
    where = [f"--jobid={job}", f"--nodelist={host}", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1"]
    where += [f"--het-group={group}"] if group else []
    how = ("--overlap", "--unbuffered", "--mpi=none", "--quiet", "--chdir=/", "--job-name=distlaunch-terminal")
    agent = (python or str(about.get("python")), str(Path(handle.get("remote", handle["run_dir"]), "agent.pyz")))
    own = str(directory / "nodes" / str(node))
    what = ("--shell", own) if rank is None else ("--attach", own, str(rank))
    return [*site.words(["srun"]), *how, *where, *agent, *what]


def _may_begin(site: Site, handle: SlurmHandle) -> bool:
    """Whether another host has its srun, and no node has begun: its setup, or other steps, may take that long."""
    begun = any(directory_of(handle).glob("nodes/*/stream"))
    over = begun or (directory_of(handle) / _ENDED).exists()
    return handle.get("host", _host()) != _host() and not over and left.has_job(site, handle["job_id"])


def _not_begun(handle: SlurmHandle) -> str:
    return f"its step in job {handle['job_id']} has not begun, and its srun is on {handle['host']}"


def _srun_lives(handle: SlurmHandle) -> bool:
    return handle.get("host") == _host() and proc.Identity(handle["pid"], handle["ticks"]).alive()


def _host() -> str:
    return socket.gethostname()
