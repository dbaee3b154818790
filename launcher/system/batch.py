"""The allocation of a batch scheduler in which this process runs, if it is one of several nodes."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.agent.named_tuple import NamedTuple
from launcher.system import input_file

if TYPE_CHECKING:
    from collections.abc import Mapping


class Batch(NamedTuple):
    """A scheduler's job, as its variables describe it."""

    job: str
    """`PBS job 12.server`."""

    nodes: int | None
    """None: the variables do not say."""

    way_out: str
    """How a run uses all of its nodes."""

    @property
    def text(self) -> str:
        """`PBS job 12.server with 4 nodes`."""
        return self.job if self.nodes is None else f"{self.job} with {self.nodes} nodes"


def found(env: Mapping[str, str]) -> Batch | None:
    """The job of PBS, LSF, Flux or Slurm in which this process runs; None if there is none, or it has one node."""
    batch = _slurm(env) or _pbs(env) or _lsf(env) or _flux(env)
    return None if batch is None or batch.nodes == 1 else batch


def _slurm(env: Mapping[str, str]) -> Batch | None:
    counts = [env.get("SLURM_JOB_NUM_NODES", "")]
    if (size := env.get("SLURM_HET_SIZE", "")).isdigit():
        counts = [env.get(f"SLURM_JOB_NUM_NODES_HET_GROUP_{group}", "") for group in range(min(int(size), 1000))]
    nodes = sum(int(count) for count in counts if count.isdigit())
    if not env.get("SLURM_JOB_ID") or not nodes:
        return None
    return Batch(f"Slurm job {env['SLURM_JOB_ID']}", nodes, "distlaunch slurm SCRIPT")


def _pbs(env: Mapping[str, str]) -> Batch | None:
    if not env.get("PBS_JOBID"):
        return None
    nodes = _lines(env.get("PBS_NODEFILE", ""))
    return Batch(f"PBS job {env['PBS_JOBID']}", nodes, _ways("$PBS_NODEFILE", "mpiexec or pbsdsh", nodes))


def _lsf(env: Mapping[str, str]) -> Batch | None:
    if not env.get("LSB_JOBID"):
        return None
    nodes = _lines(env.get("LSB_DJOB_HOSTFILE", "")) or len(set(env.get("LSB_HOSTS", "").split())) or None
    return Batch(f"LSF job {env['LSB_JOBID']}", nodes, _ways("$LSB_DJOB_HOSTFILE", "blaunch", nodes))


def _flux(env: Mapping[str, str]) -> Batch | None:
    job = env.get("FLUX_JOB_ID") or env.get("FLUX_ENCLOSING_ID")
    if not job:
        return None
    count = env.get("FLUX_JOB_NNODES", "")
    nodes = int(count) if re.fullmatch(r"[1-9]\d{0,5}", count) else None
    hosts = '"$(flux hostlist --expand --delimiter=, local),"'
    return Batch(f"Flux job {job}", nodes, _ways(hosts, "flux run", nodes))


def _ways(hosts: str, starter: str, nodes: int | None) -> str:
    once = f"distlaunch torchrun --nnodes {nodes or 'N'} --rdzv-endpoint FIRST_HOST:29500 SCRIPT"
    return f"over SSH: distlaunch ansible -i {hosts} SCRIPT; or, once per node by {starter}: {once}"


def _lines(path: str) -> int | None:
    """How many different lines the file has; None if it cannot be read."""
    with suppress(OSError):
        return len({line.strip() for line in input_file.read_text(path).splitlines() if line.strip()}) or None
    return None
