"""Real clusters on one machine: hosts in network namespaces, with real Slurm, sshd and Kubernetes. See docs/testbed.md."""

from tests.testbed.errors import NotAvailableError, TestbedError, WaitError
from tests.testbed.hosts import Host
from tests.testbed.kube import Kube
from tests.testbed.kube_conf import KubeOptions
from tests.testbed.slurm import Slurm
from tests.testbed.slurm_conf import SlurmOptions
from tests.testbed.ssh import SshHosts
from tests.testbed.testbed import Testbed
from tests.testbed.waiting import wait_until

__all__ = [
    "Host", "Kube", "KubeOptions", "NotAvailableError", "Slurm", "SlurmOptions", "SshHosts", "Testbed", "TestbedError",
    "WaitError", "wait_until",
]  # fmt: skip
