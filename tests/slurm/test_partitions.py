"""How many nodes a partition has, before a job is submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.slurm.commands import pretend

if TYPE_CHECKING:
    from tests.command import Cli

PARTITION = """cat <<'END'
PartitionName=gpu
   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL
   Nodes=gpu[1-64]
   State=UP TotalCPUs=4096 TotalNodes=64 SelectTypeParameters=NONE

PartitionName=small
   State=UP TotalCPUs=64 TotalNodes=1 SelectTypeParameters=NONE

END
"""


def test_powered_down_nodes_that_sinfo_hides_count(distlaunch: Cli) -> None:
    sees = {"sinfo": "printf 'gpu*|0||(null)\\nsmall|1|s1|(null)\\n'", "sbatch": "echo Submitted batch job 7"}
    cloud = pretend(distlaunch, {**sees, "scontrol": PARTITION})
    few = distlaunch("slurm", "--detach", "--nodes", "64", "reduce.py", env=cloud)
    many = distlaunch("slurm", "--detach", "--nodes", "65", "reduce.py", env=cloud)
    named = distlaunch("slurm", "--detach", "--nodes", "2", "-p", "small", "reduce.py", env=cloud)
    unknown = pretend(distlaunch, {**sees, "scontrol": "exit 77"})
    silent = distlaunch("slurm", "--detach", "--nodes", "2", "-p", "small", "reduce.py", env=unknown)

    assert (few.exit_code, silent.exit_code) == (0, 2), few.stderr + silent.stderr
    assert many.exit_code == 2
    assert "65 nodes: no partition has more than 64" in many.stderr
    assert named.exit_code == 2
    assert "2 nodes: partition small has 1" in named.stderr
