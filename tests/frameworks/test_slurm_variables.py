"""Slurm's variables describe each worker, as if srun had started it; Slurm itself has one task per node."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.frameworks.catalog import BY_NAME
from tests.frameworks.place import lines

if TYPE_CHECKING:
    from tests.frameworks.place import Place

MPIRUN = f"""#!{sys.executable}
import shlex, subprocess, sys
if "--version" in sys.argv:
    sys.exit("HYDRA build details:\\n    Version:  4.2.0")
shell, hosts = (sys.argv[sys.argv.index(option) + 1] for option in ("-launcher-exec", "-f"))
program = shlex.join(sys.argv[sys.argv.index("-np") + 2 :])
places = [host for host, count in (line.split(":") for line in open(hosts)) for _ in range(int(count))]
ranks = [subprocess.Popen([shell, host, f"PMI_RANK={{rank}} exec {{program}}"]) for rank, host in enumerate(places)]
sys.exit(max(rank.wait() for rank in ranks))
"""
"""Starts the ranks as MPICH's does."""

SRUN = """#!/bin/sh
echo "$*" >> asked
echo "slurm 24.11.5 pmix pmi2"
"""


@pytest.mark.slurm
@pytest.mark.torch
def test_each_worker_of_two_nodes_has_its_own(on_slurm: Place) -> None:
    done = on_slurm.run(BY_NAME["torchrun"], script="slurm_place.py")

    assert done.exit_code == 0, done.stderr
    assert lines(done) == {
        rank: [f"{rank // 2}: place {rank} {rank % 2} {rank // 2} 4 4 2(x2) 2(x2)"] for rank in range(4)
    }


def test_simulated_nodes_in_a_step_of_slurm_are_not_slurms(local: Place) -> None:
    """As in a shell of `srun --pty`, which has the name of one host for all of them."""
    programs = local.cli.directory / "bin"
    programs.mkdir()
    for name, text in {"mpirun": MPIRUN, "srun": SRUN}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    step = {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURMD_NODENAME": "n1"}
    inside = replace(local, env={**step, "PATH": f"{programs}:{os.environ['PATH']}"})
    (local.work / "ranks.py").write_text('import os\nprint("rank", os.environ["RANK"])\n')

    done = inside.run(BY_NAME["env-python"], "--contract=mpi", script="ranks.py")

    assert done.exit_code == 0, done.stderr
    assert lines(done) == {rank: [f"{rank // 2}: rank {rank}"] for rank in range(4)}
    assert not list(local.cli.directory.rglob("asked"))
