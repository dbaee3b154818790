"""What Slurm's commands read from the environment in place of a job file or a command line, and must not.

sbatch takes its variables before the `#SBATCH` lines (sbatch(1), INPUT ENVIRONMENT VARIABLES), and both sbatch and srun
take those of a job that they are called in.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_STATED = re.compile(r"^#SBATCH\s+--([a-z-]+)", re.MULTILINE)
_MEMORY = ("SBATCH_MEM_PER_NODE", "SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU")
_REQUEUE = ("SBATCH_REQUEUE", "SBATCH_NO_REQUEUE")
_NAMES: Mapping[str, tuple[str, ...]] = {
    "time": ("SBATCH_TIMELIMIT",),
    "array": ("SBATCH_ARRAY_INX",),
    "clusters": ("SBATCH_CLUSTERS", "SLURM_CLUSTERS"),
    "hint": ("SBATCH_HINT", "SLURM_HINT"),
    "switches": ("SBATCH_REQ_SWITCH", "SBATCH_WAIT4SWITCH"),
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu"), _MEMORY),
    **dict.fromkeys(("requeue", "no-requeue"), _REQUEUE),
}
"""Options that have several variables, or one of another name, or whose variables exclude one another."""

_FILTERS = {
    "squeue": ("ACCOUNT", "LICENSES", "NAMES", "PARTITION", "QOS", "STATES", "USERS"),
    "sinfo": ("PARTITION",),
    "scancel": ("ACCOUNT", "BATCH", "FULL", "INTERACTIVE", "NAME", "PARTITION", "QOS", "STATE", "USER", "WCKEY"),
}
"""By command, what follows its name in variables that would hide jobs or nodes from it, or have it ask."""

PRINTED = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
"""Has commands print Unix seconds, as a login node may be in another time zone, and all indices of an array."""

_OF_CLUSTERS = ("SLURM_CONF", "SLURM_JWT")
_OF_A_JOB = ("SLURM_", "SRUN_")


def stated(job_file: str) -> list[str]:
    """The variables that would override a line of the job file."""
    options = sorted(set(_STATED.findall(job_file)))
    names = (_NAMES.get(option) or (f"SBATCH_{option.replace('-', '_').upper()}",) for option in options)
    return list(dict.fromkeys(chain(*names)))


def hiding(command: str) -> list[str]:
    """The variables that would change what this command reports of jobs and nodes, or does to them."""
    return [f"{command.upper()}_{name}" for name in _FILTERS.get(command, ())]


def without_them(env: Mapping[str, str], overriding: Iterable[str]) -> dict[str, str]:
    """The environment of a command that is to do as its words and files say, whatever job this process is in.

    Which clusters to ask stays the user's choice.
    """
    chosen = {name: env[name] for name in ("SLURM_CLUSTERS",) if name in env}
    kept = {**of_no_job(env), **chosen} if "SLURM_JOB_ID" in env else dict(env)
    for name in overriding:
        kept.pop(name, None)
    return kept


def unset(overriding: Iterable[str]) -> str:
    """The same, with `PRINTED`, as the beginning of a program for the shell of a login node, where no job is.

    With `command`, a variable that is read-only there stays, and does not end the shell.
    """
    gone = f"command unset {' '.join([*PRINTED, *overriding])} 2>/dev/null\n"
    return gone + "".join(f"command export {name}={value} 2>/dev/null\n" for name, value in PRINTED.items())


def of_no_job(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without the job's variables, which srun would take for its options."""
    return {name: value for name, value in env.items() if not name.startswith(_OF_A_JOB) or name in _OF_CLUSTERS}
