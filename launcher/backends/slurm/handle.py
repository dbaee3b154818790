"""What a run on Slurm is found by: a job of its own, or a step of an allocation."""

from __future__ import annotations

from launcher.runs.handle import Handle


class _Sized(Handle):
    nodes: int


class SlurmHandle(_Sized, total=False):
    """Kept in `run.json`."""

    job_id: str
    """Once Slurm has answered; of a step, its allocation's."""

    comment: str
    """The job's, by which it is found where Slurm's answer was lost."""

    name: str
    """The job's; ids come round again."""

    besides: str
    """The job of the attempt before, which has the same comment."""

    step: str
    """The name of the step, where the run is one; then `host`, `pid` and `ticks` are srun's."""

    host: str
    pid: int
    ticks: int
