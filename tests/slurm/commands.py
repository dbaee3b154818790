"""Slurm's commands, without a cluster: scripts on PATH that print what a test wants."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.command import Cli

QUIET = {"srun": "", "sbatch": "", "squeue": "", "scancel": "", "scontrol": "", "sinfo": "echo 'main|4'\n", "sacct": ""}


def pretend(cli: Cli, commands: dict[str, str]) -> dict[str, str | None]:
    """Write them, to run in the user's directory; the environment in which they are found first."""
    for name, text in (QUIET | commands).items():
        cli.write(f"bin/{name}", f"#!/bin/sh\ncd {cli.directory}\n{text}").chmod(0o755)
    return {"PATH": f"{cli.directory}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": None}
