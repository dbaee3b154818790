"""The handle of a run on Slurm: a job of its own, or a step of an allocation."""

from __future__ import annotations

from pathlib import Path

from launcher.runs.handle import Handle


class _Sized(Handle):
    nodes: int


class SlurmHandle(_Sized, total=False):
    """Kept in `run.json`."""

    comment: str
    """The job's comment, which identifies it if Slurm's answer was lost."""

    name: str
    """The job's name: Slurm reuses ids."""

    clusters: str
    """Which of several clusters has the job, by Slurm's name; all of a federation, where it may start on any."""

    remote: str
    """The run's directory on the cluster, if it is behind a login node."""

    besides: str
    """The jobs of previous attempts, `4711,4720`: they have the same comment."""

    printed: int
    """How much of `job.out` those have written, in bytes."""

    host: str
    """Of a step, the host of its srun; `pid` and `ticks` identify srun."""

    pid: int
    ticks: int


def directory_of(handle: SlurmHandle) -> Path:
    """The directory in which the nodes write, of the run or of the task of a job array."""
    return Path(handle["run_dir"], *(("tasks", str(handle["task"])) if "task" in handle else ()))


def remote_of(handle: SlurmHandle) -> str:
    """The same behind a login node."""
    return str(Path(handle["remote"], *(("tasks", str(handle["task"])) if "task" in handle else ())))
