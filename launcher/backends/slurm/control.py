"""Slurm's commands: submit a job once, and control it."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.schedulers.slurm import SlurmError, expand
from launcher.backends.slurm import site as sites
from launcher.backends.slurm.states import out_of_reach
from launcher.errors import BackendUnavailableError, CommandError, LaunchError, SpecError, StorageError
from launcher.system import batch, proc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from subprocess import CompletedProcess

    from launcher.backends.slurm.site import Site
    from launcher.backends.slurm.submitit import Queue

_CONTROL_S = 90
PING = "slurmctld does not answer; `scontrol ping` shows when it does"
_NODES = re.compile(r"^PartitionName=(\S+).*?\bTotalNodes=(\d+)", re.MULTILINE | re.DOTALL)
_WAYS_OUT = {
    "account": "your accounts: sacctmgr show assoc user=$USER format=account,partition,qos",
    "qos": "your QOS: sacctmgr show assoc user=$USER format=account,qos",
    "partition": "partitions: sinfo --summarize",
    "feature": "features: sinfo --format='%N %f'",
    "reservation": "reservations: scontrol show reservation",
}


def no_sbatch() -> BackendUnavailableError:
    """The error for a host without Slurm's commands, which may belong to another scheduler."""
    if (inside := batch.found(os.environ)) is None:
        return BackendUnavailableError("sbatch is not on PATH", hint="run this on a login node of the cluster")
    return BackendUnavailableError(f"this is {inside.text}, and no Slurm: sbatch is not on PATH", hint=inside.way_out)


def control(site: Site, *argv: str, check: bool = True) -> None:
    """Run a Slurm command; with `check` a refusal is an error. An unreachable controller always is one."""
    done, said = ask(site, *argv)
    if done.returncode and check and "already completing or completed" not in said:
        raise CommandError(f"{argv[0]}: {said or f'exit code {done.returncode}'}")


def ask(site: Site, *argv: str, stdin: bytes = b"", without: Sequence[str] = ()) -> tuple[CompletedProcess[str], str]:
    """Run a Slurm command; returns it and its stderr. An unreachable controller is an error. `without`: variables."""
    try:
        done = site.run(argv, timeout_s=_CONTROL_S, stdin=stdin, without=without)
    except CommandError as error:
        raise BackendUnavailableError(error.message, hint=PING) from error
    said = proc.in_one_line(done.stderr)
    if done.returncode and out_of_reach(said):
        raise BackendUnavailableError(f"{argv[0]}: {said}", hint=PING)
    return done, said


def signal_word(number: int) -> str:
    """The signal as scancel takes it: it knows few by name, and these by their number."""
    name = signal.Signals(number).name.removeprefix("SIG")
    return str(int(number)) if name == "WINCH" else name


def cancel(site: Site, *argv: str) -> None:
    """Run scancel. A job that ended or no longer waits is not an error: `--quiet` makes that a silent exit code 1."""
    done, said = ask(site, "scancel", "--quiet", *argv)
    if done.returncode and said:
        raise CommandError(f"scancel: {said.removeprefix('scancel: error: ')}")


def cancel_booting(site: Site, job_id: str) -> None:
    """Cancel what of the job waits for its nodes to boot: it counts as running for scancel, which signals nothing."""
    done, _ = ask(site, "squeue", "--array", f"--jobs={job_id}", "--states=CONFIGURING", "--noheader", "--format=%i")
    if ids := dict.fromkeys(re.findall(r"^\d+(?:_\d+)?", done.stdout, re.MULTILINE)):
        cancel(site, *ids)


def check_partitions(site: Site, asked: Sequence[tuple[str, int]], text: str) -> set[str]:
    """Raise `SpecError` for more nodes than exist: Slurm would let such a job wait forever. Warn about unused GPUs.

    `asked`: the partition of each component of the job, and how many nodes it needs there. `text`: the job file.
    Returns the names of the nodes that the job may get, as far as sinfo tells.
    """
    try:
        done, _ = ask(site, "sinfo", "--noheader", "--format=%P|%D|%N|%G")
    except BackendUnavailableError as error:
        error.hint = "; ".join(filter(None, ["nothing was submitted", error.hint]))
        raise
    if done.returncode:
        return set()  # sbatch will report what is wrong
    named = {partition for partition, _ in asked}
    sizes: Counter[str] = Counter()
    with_gpus: dict[str, str] = {}
    hosts: set[str] = set()
    for line in done.stdout.splitlines():
        name, count, names, gres = (*line.split("|", 3), "", "", "")[:4]
        default = name.endswith("*")
        name = name.removesuffix("*")
        sizes[name] += int(count or 0)
        if any(name in partition.split(",") if partition else default for partition in named):
            with suppress(SlurmError):
                hosts.update(expand(names))
            if "gpu" in gres:
                with_gpus.setdefault(name, gres.partition("(")[0])
    _check_sizes(site, asked, sizes)
    if with_gpus and not _asks_for_gpus(text):
        name, gres = next(iter(with_gpus.items()))
        output.warn(
            f"nodes of partition {name} have {gres}, and the run asks for no GPU: --gpus-per-node N asks for some, "
            "--gres none says that it needs none"
        )
    return hosts


def _check_sizes(site: Site, asked: Sequence[tuple[str, int]], sizes: Mapping[str, int]) -> None:
    """Raise `SpecError` if a partition has fewer nodes than all components need there."""
    if _shortfall(asked, sizes) and (error := _shortfall(asked, _configured(site) or sizes)):
        raise error


def _configured(site: Site) -> Counter[str]:
    """How many nodes each partition has, with those that are powered down, which sinfo may hide; empty: not known."""
    sizes: Counter[str] = Counter()
    for name in site.clusters.split(","):  # scontrol takes one of them
        try:
            done, _ = ask(sites.on(site, name), "scontrol", "show", "partition")
        except BackendUnavailableError:
            return Counter()
        if done.returncode:
            return Counter()
        for partition, nodes in _NODES.findall(done.stdout):
            sizes[partition] += int(nodes)
    return sizes


def _shortfall(asked: Sequence[tuple[str, int]], sizes: Mapping[str, int]) -> SpecError | None:
    """The error if partitions of these sizes have too few nodes."""
    wanted: Counter[str] = Counter()
    for partition, nodes in asked:
        wanted[partition] += nodes
    known = ", ".join(f"{name} {count}" for name, count in sizes.items())
    for partition, nodes in wanted.items():
        choices = set(partition.split(",") if partition else sizes)
        most = max((sizes.get(name, 0) for name in choices), default=nodes)
        if nodes > most and choices <= set(sizes):
            where = f"partition {partition} has" if partition else "no partition has more than"
            return SpecError(f"{nodes} nodes: {where} {most}", hint=f"nodes by partition: {known}")
    return None


def _asks_for_gpus(text: str) -> bool:
    """Whether the job file, or a variable that sbatch reads, says how many GPUs are wanted."""
    named = re.search(r"^#SBATCH\s+(-G|--(gpus|gres|tres)\b)", text, re.MULTILINE)
    return bool(named) or any(name.startswith(("SBATCH_GPUS", "SBATCH_GRES", "SBATCH_TRES")) for name in os.environ)


def send(queue: Queue, run_dir: Path, submit: Callable[[], str], besides: str = "") -> str:
    """Call `submit`, which runs sbatch once; returns the id of the job, which is none of `besides`."""

    def late() -> str | None:
        time.sleep(1)  # a slow controller may still have accepted the job
        return queue.by_comment(f"distlaunch:{run_dir.name}", besides)

    look = f"squeue --me --format='%i %k' shows later whether it has the job; the job file is in {run_dir}"
    try:
        return submit()
    except LaunchError as error:
        found = late()
        if found is not None:
            return found
        if isinstance(error, BackendUnavailableError) or out_of_reach(error.message):
            unsure = "connect failure" not in error.message
            raise BackendUnavailableError(error.message, hint=look, in_part=unsure) from error
        if isinstance(error, StorageError) or error.hint:  # not what sbatch has said
            raise
        raise SpecError(error.message, hint=f"{way_out(error.message)}; the job file is in {run_dir}") from error
    except KeyboardInterrupt as stop:
        if found := late():
            cancel(queue.site, found)
            raise
        raise BackendUnavailableError("sbatch was stopped before it answered", hint=look, in_part=True) from stop


def way_out(said: str) -> str:
    """A hint for an error message of sbatch."""
    for word, way in _WAYS_OUT.items():
        if word in said.lower():
            return way
    return "this is Slurm's own message"
