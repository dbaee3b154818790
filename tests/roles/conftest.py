"""The places of the frameworks' tests, with scripts for roles."""

from tests.frameworks.conftest import in_pods, local, on_slurm, over_ssh

__all__ = ["in_pods", "local", "on_slurm", "over_ssh"]
