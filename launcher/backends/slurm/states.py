"""Slurm's job states and reasons, translated in one place."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.agent.failures import Failure
from launcher.agent.schedulers.slurm import expand
from launcher.system import input_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from launcher.backends.slurm.handle import SlurmHandle
    from launcher.runs.liveness import NodeState
    from launcher.runs.node_report import Cause

TABLE: dict[str, NodeState] = {
    "PENDING": "pending",
    "CONFIGURING": "pending",
    "REQUEUED": "pending",
    "REQUEUE_FED": "pending",
    "REQUEUE_HOLD": "pending",
    "RESV_DEL_HOLD": "pending",
    "SPECIAL_EXIT": "pending",
    "RUNNING": "running",
    "COMPLETING": "running",
    "RESIZING": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "running",
    "STOPPED": "running",
    "SUSPENDED": "running",
    "COMPLETED": "ended",
    "FAILED": "ended",
    "BOOT_FAIL": "ended",
    "CANCELLED": "ended",
    "DEADLINE": "ended",
    "NODE_FAIL": "ended",
    "OUT_OF_MEMORY": "ended",
    "PREEMPTED": "ended",
    "REVOKED": "ended",
    "TIMEOUT": "ended",
}


def meaning(state: str) -> NodeState:
    """Translate a job state, also `CANCELLED by 1000` and `RUNNING+`; an unfamiliar one is `unknown`."""
    words = state.replace("+", " ").split()
    return TABLE.get(words[0].upper(), "unknown") if words else "unknown"


def of_all(states: Sequence[str]) -> str:
    """The state of a job of several components: while any of them runs or waits that, then why Slurm has ended one."""

    def before(state: str) -> int:
        known, word = meaning(state), (state.replace("+", " ").split() or [""])[0].upper()
        if known != "ended":
            return ("running", "pending", "unknown").index(known)
        return 3 + _WORST_FIRST.index(word) if word in _WORST_FIRST else 3

    return min(states, key=before)


_WORST_FIRST = (
    *("NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "DEADLINE", "PREEMPTED", "CANCELLED", "REVOKED"),
    *("FAILED", "COMPLETED"),
)

_CLASSES = {
    "BOOT_FAIL": Failure.NODE,
    "CANCELLED": Failure.CANCELLED,
    "DEADLINE": Failure.TIMEOUT,
    "NODE_FAIL": Failure.NODE,
    "OUT_OF_MEMORY": Failure.OUT_OF_MEMORY,
    "PREEMPTED": Failure.PREEMPTED,
    "REVOKED": Failure.CANCELLED,
    "TIMEOUT": Failure.TIMEOUT,
}
"""The failure class of each state that implies one."""

_REASONS = {
    "BadConstraints": "no node of the cluster has what is asked for",
    "JobLaunchFailure": "Slurm could not start it on its node: "
    "the run directory must be on a file system that all nodes see",
    "DependencyNeverSatisfied": "the job that it depends on has failed; it will never start",
    "JobHeldUser": "held: scontrol release JOB",
    "JobHeldAdmin": "held by an administrator",
    "PartitionConfig": "the partition does not have this many nodes",
    "PartitionNodeLimit": "the partition allows no job this many nodes",
    "PartitionTimeLimit": "the time limit is above the partition's",
}
"""Explanations of reasons that do not explain themselves."""


def out_of_reach(said: str) -> bool:
    """Whether a Slurm command failed because no controller answered."""
    words = [
        "Unable to contact slurm controller",
        "Socket timed out",
        "Zero Bytes were transmitted",
        "Connection refused",
    ]
    words += ("establish a configuration source", "Unable to process configuration file")  # this host is in no cluster
    return any(word.lower() in said.lower() for word in words)


def job_of(handle: SlurmHandle) -> str:
    """The id of the job, or of the task of a job array."""
    return f"{handle['job_id']}_{handle['task']}" if "task" in handle else str(handle["job_id"])


_STARTED_ELSEWHERE = ": another cluster of the federation has started it; --clusters A,B names those to be followed"


def explain(reason: str) -> str:
    """The reason, with its explanation if there is one."""
    return f"{reason} ({_REASONS[reason]})" if reason in _REASONS else reason


def ending(job_id: str, state: str, reason: str) -> Cause | None:
    """The cause that Slurm gives for a job's end; None if the agents know as much themselves."""
    word = (state.replace("+", " ").split() or [""])[0].upper()
    kind = _CLASSES.get(word) or (Failure.NODE if reason in _REASONS else None)
    why = f": {explain(reason)}" if reason not in ("", "None", "NonZeroExitCode") else ""
    why = _STARTED_ELSEWHERE if word == "REVOKED" else why
    nobody = {"host": None} if reason in _REASONS else {}  # the job never reached a host
    return {"class": kind, "message": f"Slurm ended job {job_id}, state {word}{why}", **nobody} if kind else None


def lost_host(job_output: Path, since: int = 0) -> str | None:
    """The node that Slurm lost, as srun reports it after the first `since` bytes; None if it was srun's own node."""
    with suppress(OSError):
        said = input_file.end_of(job_output, 65536, since)
        found = re.findall(rb"^srun: error: Node failure on ([^\s,]+)", said, re.MULTILINE)
        return found[-1].decode(errors="replace") if found else None
    return None


def not_started(job_output: Path, since: int = 0) -> dict[str, str]:
    """Hosts on which no agent could start, with the error: the run directory or the interpreter is missing there.

    `since`: as for `lost_host`.
    """
    found: dict[str, str] = {}
    with suppress(OSError, ValueError):
        text = input_file.end_of(job_output, 65536, since).decode(errors="replace")
        said = re.findall(
            r"^(?!srun: )(?!slurmstepd).*(?:can't open file|No such file or directory|cannot read|agent\.pyz: ).*",
            text,
            re.MULTILINE,
        )
        said += re.findall(r"^slurmstepd\S*: error: (execve\(\): .*)", text, re.MULTILINE)
        for hosts in re.findall(
            r"^srun: error: (\S+): tasks? \S+: Exited with exit code (?:2|13|126|127)$", text, re.MULTILINE
        ):
            found.update(dict.fromkeys(expand(hosts), said[-1].strip() if said else "exit code 2"))
    return found
