"""What a run has used."""

from __future__ import annotations

from typing import TypedDict

from launcher.results.progress import Watched


class Usage(TypedDict):
    """What a run has used so far, in all of its attempts; null: not known."""

    waited_s: float | None
    """From its submission to its first agent."""

    ran_s: float
    """How long it has had its nodes."""

    lost_s: float
    """How long no worker ran because of restarts: of its workers, and of the run as a whole, with the queue."""

    restarts: int
    """Of either kind."""

    gpus: int | None
    gpu_hours: float | None
    gpu_use: float | None
    """Percent of the time in which something ran on its GPUs, the mean of all."""

    cpus: int | None
    cpu_use: float | None
    """Percent of all CPUs that its ranks kept busy on average."""

    memory_peak_bytes: int | None
    """Most memory that the ranks of one node had; pages that several of them share count in each."""

    memory_bytes: int | None
    """Memory of that node."""

    whole: bool
    """False: only the ends of its streams were read, as they are long, and restarts between them are missing."""


class MaybeUsage(TypedDict, total=False):
    """With `ls --usage`."""

    usage: Usage | None


class Told(Watched):
    """What a run's streams tell besides its state."""

    usage: Usage | None
    """Null of a job array, and before its first agent."""

    links: list[str]
    """Pages of the run at Weights & Biases or MLflow, as its script has printed them."""
