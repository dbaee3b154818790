"""torchrun's own command line in a batch script: `distlaunch torchrun` in its place does the same."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests.command import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from testbed import Slurm

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

BATCH = """#!/bin/sh
#SBATCH --nodes=2 --ntasks-per-node=1
cd {directory}
export PYTHONPATH={root} OUT={directory}/$SLURM_JOB_ID
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun {launcher} --nnodes "$SLURM_NNODES" --nproc_per_node 2 --rdzv_id "$SLURM_JOB_ID" --rdzv_backend c10d \\
    --rdzv_endpoint "$head:29500" x.py a
echo "srun ended with $?"
srun {launcher} --nnodes "$SLURM_NNODES" --nproc_per_node 2 --rdzv_id "$SLURM_JOB_ID" --rdzv_backend c10d \\
    --rdzv_endpoint "$head:29500" x.py 3
echo "srun ended with $?"
"""
SCRIPT = """
import json, os, sys, time
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID")
with open(os.environ["OUT"], "a") as out:
    out.write(json.dumps([sys.argv[1:], [os.environ.get(name) for name in names]]) + "\\n")
if sys.argv[1] == "3":
    while sum(line.startswith('[["3"]') for line in open(os.environ["OUT"])) < 4:
        time.sleep(0.1)  # until all have noted themselves: the first that ends ends the others
    sys.exit(3)  # on both nodes: torchrun would wait for the other one for five minutes
"""


def seen(slurm: Slurm, directory: Path, launcher: str) -> tuple[list[object], list[str]]:
    """What the workers were given, and what the script has printed."""
    script = BATCH.format(directory=directory, root=ROOT, launcher=f"{sys.executable} -m {launcher}")
    job = slurm.sbatch(script, "--output", f"{directory}/%j.out", cwd=str(directory))
    slurm.wait_job(job, "COMPLETED")
    said = (directory / f"{job}.out").read_text()
    lines = (directory / job).read_text().replace(f'"{job}"]', '"JOB"]').splitlines()
    return sorted(json.loads(line) for line in lines), [
        line for line in said.splitlines() if line.startswith("srun ended")
    ]


def test_in_a_batch_script_only_the_word_torchrun_has_to_be_replaced(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(SCRIPT)

    theirs, ours = (seen(slurm, tmp_path, launcher) for launcher in ("torch.distributed.run", "launcher torchrun"))

    assert ours == theirs
    assert len(ours[0]) == 8
    assert ours[1] == ["srun ended with 0", "srun ended with 1"]
