"""Real clusters on one machine: hosts in network namespaces, with Slurm, sshd and Kubernetes. See docs/testbed.md."""

from testbed.errors import NotAvailableError, TestbedError, WaitError
from testbed.hosts import Host
from testbed.kube import Kube
from testbed.kube_conf import KubeOptions
from testbed.slurm import Slurm
from testbed.slurm_conf import SlurmOptions
from testbed.ssh import SshHosts
from testbed.testbed import Testbed
from testbed.waiting import wait_until

__all__ = [
    "Host", "Kube", "KubeOptions", "NotAvailableError", "Slurm", "SlurmOptions", "SshHosts", "Testbed", "TestbedError",
    "WaitError", "wait_until",
]  # fmt: skip
