"""A testbed: hosts on one bridge, with Slurm, sshd and Kubernetes if wanted; `down` removes everything."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, final

from testbed import kube_node, network, packages, registry
from testbed.errors import NotAvailableError, TestbedError
from testbed.kube import Kube
from testbed.slurm import Slurm
from testbed.ssh import SshHosts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from testbed.hosts import Host
    from testbed.kube_conf import KubeOptions
    from testbed.registry import Record
    from testbed.slurm_conf import SlurmOptions

MAX_HOSTS = 250
ROOM_BYTES = 500_000_000
"""Disk space for logs, spools, a database, and a margin."""


@final
class Testbed:
    """Hosts on this machine, each in its own network namespace.

        with Testbed().up(hosts=4, slurm=SlurmOptions()) as testbed:
            testbed.slurm.run(("srun", "-N4", "hostname"))

    Args:
        directory: for configuration, logs and spools; it is kept. None for a new directory in /tmp, removed with the
            testbed. Users other than root need access to it to run jobs.
    """

    __test__ = False  # not a test, in spite of its name

    def __init__(self, directory: Path | None = None) -> None:
        self._wanted_directory = directory
        self._record: Record | None = None
        self._slurm: Slurm | None = None
        self._ssh: SshHosts | None = None
        self._kube: Kube | None = None
        self._all: dict[str, Host] = {}

    def up(
        self,
        hosts: int = 4,
        *,
        slurm: SlurmOptions | None = None,
        ssh: bool = False,
        kubernetes: KubeOptions | None = None,
    ) -> Testbed:
        """Bring it up; if that fails, nothing is left behind.

        Raises:
            NotAvailableError: not root, packages or programs that cannot be installed or built, or a full disk.
        """
        if not 1 <= hosts <= MAX_HOSTS:
            raise TestbedError(f"{hosts} hosts: from 1 to {MAX_HOSTS} are possible")
        groups = [packages.NETWORK]
        groups += [packages.SLURM] if slurm else []
        groups += [packages.ACCOUNTING] if slurm and slurm.accounting else []
        groups += [packages.SSH] if ssh else []
        hidden = (network.SHARED_MEMORY, *(kube_node.HIDDEN if kubernetes and kubernetes.nodes else ()))
        self._check_place(hidden)
        packages.require(*groups)
        if kubernetes:
            Kube.require(kubernetes)
        try:
            self._build(hosts, hidden)
            if ssh:
                self._ssh = SshHosts.start(self.hosts, self.directory)
            if slurm:
                self._slurm = Slurm(
                    slurm, self.hosts[: slurm.hosts or None], self.controller, self.directory, self.record.state
                )
                self._slurm.start()
            if kubernetes:
                self._kube = Kube.start(kubernetes, self.hosts, self.controller, self.record)
        except BaseException:
            self.down()
            raise
        return self

    def _check_place(self, hidden: Sequence[str]) -> None:
        """Raise `TestbedError` for a directory in a place that each host has for itself."""
        place = self._wanted_directory and _within(self._wanted_directory, hidden)
        if place:
            raise TestbedError(f"{self._wanted_directory}: hosts do not see it, each has a {place} of its own")

    def _build(self, hosts: int, hidden: Sequence[str]) -> None:
        """Claim names and addresses, and create the hosts."""
        own = self._wanted_directory is None
        usual = Path(tempfile.gettempdir())
        where = Path("/tmp") if _within(usual, hidden) else usual
        directory = self._wanted_directory or Path(tempfile.mkdtemp(prefix="distlaunch-testbed-", dir=where))
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise TestbedError(f"{directory} is not empty: a testbed does not go on where another ended")
        free = shutil.disk_usage(directory).free
        if free < ROOM_BYTES:
            if own:
                directory.rmdir()
            needs = f"the testbed needs {ROOM_BYTES / 1e9:.1f} GB of disk"
            raise NotAvailableError(f"{needs}, and {free / 1e9:.1f} GB are free in {directory.parent}")
        directory.chmod(0o755)
        try:
            self._record = registry.claim(directory.absolute(), own_directory=own)
        except BaseException:
            if own:
                directory.rmdir()
            raise
        atexit.register(self.down)
        network.build(self._record, [f"n{n}" for n in range(1, hosts + 1)], self.directory, self._all)

    def down(self) -> None:
        """Kill all its processes, and remove its hosts; a second call does nothing."""
        record = self._record
        if record is None or record.pid != os.getpid():  # a fork of its owner is not its owner
            return
        if self._kube:
            self._kube.close()
        with registry.locked():
            registry.remove(record)
        for host in self._all.values():
            host.down()
        self._all.clear()
        self._record = self._slurm = self._ssh = self._kube = None
        atexit.unregister(self.down)

    @property
    def record(self) -> Record:
        """Its names and addresses."""
        if self._record is None:
            raise TestbedError("the testbed is not up")
        return self._record

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Its hosts n1, n2, ..., without the controller."""
        return tuple(
            sorted(
                (host for name, host in self._all.items() if name != network.CONTROLLER),
                key=lambda host: int(host.name[1:]),
            )
        )

    @property
    def controller(self) -> Host:
        """The host of slurmctld and the other central daemons; it exists without Slurm, too."""
        return self._all[network.CONTROLLER]

    @property
    def directory(self) -> Path:
        """The directory of its configuration, logs and spools."""
        return Path(self.record.directory)

    @property
    def address(self) -> str:
        """The address by which its hosts reach this machine; they also know it as `submit`."""
        return network.address(self.record, 253)

    @property
    def slurm(self) -> Slurm:
        """Its Slurm."""
        if self._slurm is None:
            raise TestbedError("this testbed has no Slurm: up(slurm=SlurmOptions())")
        return self._slurm

    @property
    def ssh(self) -> SshHosts:
        """Its hosts with sshd."""
        if self._ssh is None:
            raise TestbedError("this testbed has no sshd: up(ssh=True)")
        return self._ssh

    @property
    def kube(self) -> Kube:
        """Its Kubernetes."""
        if self._kube is None:
            raise TestbedError("this testbed has no Kubernetes: up(kubernetes=KubeOptions())")
        return self._kube

    def __enter__(self) -> Testbed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()


def _within(directory: Path, places: Sequence[str]) -> str:
    """Which of these places a directory is in; empty if it is in none."""
    path = directory.resolve()
    return next((place for place in places if path.is_relative_to(Path(place).resolve())), "")
