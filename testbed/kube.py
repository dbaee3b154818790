"""A real Kubernetes: its control plane on the testbed's controller, its users, and faults to inject."""

from __future__ import annotations

import contextlib
import secrets
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed import (
    kube_builds,
    kube_conf,
    kube_controllers,
    kube_image,
    kube_kinds,
    kube_node,
    kube_node_conf,
    kube_programs,
    kube_simulated,
    packages,
    processes,
)
from testbed.errors import TestbedError
from testbed.kube_api import KubeApi
from testbed.kube_builds import COREDNS, ETCD, KUBERNETES, KWOK
from testbed.kube_conf import KubeFiles, KubeOptions
from testbed.kube_kinds import KINDS
from testbed.kube_node import KubeNode
from testbed.kube_objects import AdminObjects
from testbed.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence

    from testbed.hosts import Host
    from testbed.registry import Record

START_LIMIT_S = 180
USERS = {
    "admin": ("admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", "system:masters"),
    "kube-scheduler": ("system:kube-scheduler", "system:authenticated"),
    "stranger": ("stranger", "system:authenticated"),
}
"""Name and group by file name; `stranger` has no rights."""


@dataclass
class Kube(AdminObjects):
    """One cluster. `kubeconfig` is the administrator's, with unlimited rights."""

    options: KubeOptions
    controller: Host
    nodes: tuple[KubeNode, ...] = ()
    """Its real nodes."""

    _controllers: list[str] = field(default_factory=list, repr=False)
    _daemons: dict[str, subprocess.Popen[Any]] = field(default_factory=dict, repr=False)
    _tokens: dict[str, str] = field(default_factory=dict, repr=False)
    _api: KubeApi | None = field(default=None, repr=False)

    @classmethod
    def require(cls, options: KubeOptions) -> None:
        """Install or build all programs that are needed, or raise `NotAvailableError`."""
        packages.require(packages.KUBERNETES, *((packages.KUBERNETES_NODE,) if options.nodes else ()))
        more = [COREDNS] * options.nodes + [KWOK] * bool(options.simulated_nodes)
        kube_programs.require(ETCD, KUBERNETES, *more, *kube_kinds.builds(options.controllers))

    @classmethod
    def start(cls, options: KubeOptions, hosts: Sequence[Host], controller: Host, record: Record) -> Kube:
        """Start a cluster: its control plane, then DNS and its nodes."""
        files = KubeFiles(Path(record.directory) / "kubernetes")
        made = cls(files, options, controller, _tokens={"admin": secrets.token_hex(16)})
        for number, host in enumerate(hosts if options.nodes else (), 1):
            made.nodes += (KubeNode(host, number, record.cgroup(host.name), options, files, made.connect()),)
        try:
            made._start_all()
        except BaseException:
            made.close()
            raise
        return made

    def _start_all(self) -> None:
        """Start its programs, one after the other."""
        self._start_control_plane()
        if self.nodes:
            self._start_dns()
            kube_image.write(self.files.images)
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda node: node.set_up(self.controller.address), self.nodes))
                kube_node.join_networks(self.controller, self.nodes)
                list(pool.map(KubeNode.start, self.nodes))
        if self.options.simulated_nodes:
            self._start_simulation()
            self._simulate(self.options.simulated_nodes)
        if self.options.controllers:
            self.add_controllers(*self.options.controllers)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.files.kubeconfig

    @property
    def server(self) -> str:
        """The API server's address, from this machine and from the hosts."""
        return f"https://{self.controller.address}:{kube_conf.PORT}"

    @property
    def api(self) -> KubeApi:
        """The API, as the administrator."""
        if self._api is None:
            self._api = self.connect()
        return self._api

    def connect(self) -> KubeApi:
        """The API as the administrator, over a connection of its own, for another thread."""
        return KubeApi(self.server, self.files.ca, self._tokens["admin"])

    def kubectl(
        self, *args: str, stdin: str = "", kubeconfig: Path | None = None, timeout_s: float = 120, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl on this machine, as the administrator or with another kubeconfig."""
        argv = (kube_programs.find(KUBERNETES, "kubectl"), f"--kubeconfig={kubeconfig or self.kubeconfig}", *args)
        return processes.run(argv, timeout_s=timeout_s, stdin=stdin, check=check)

    # Additions to a running cluster

    def add_controllers(self, *names: str) -> None:
        """Install controllers of other kinds of jobs (by default all) and those that they need, unless installed."""
        wanted = [name for name in kube_kinds.wanted(names or tuple(KINDS)) if name not in self._controllers]
        kube_programs.require(*(KINDS[name].build for name in wanted))
        kube_controllers.install(self, wanted)
        self._controllers += wanted

    @contextlib.contextmanager
    def simulated(self, count: int) -> Iterator[None]:
        """Add `count` simulated nodes within the context, tainted `simulated:NoSchedule` if there are real ones.

        Leave no pods on them.
        """
        kube_programs.require(KWOK)
        self._start_simulation()
        try:
            self._simulate(count)
            yield
        finally:
            self.api.delete(f"/api/v1/nodes?labelSelector={kube_simulated.LABEL}")
            self._stop("kwok", signal.SIGTERM)

    def _start_simulation(self) -> None:
        """Start kwok, which simulates nodes."""
        self._start("kwok", KWOK, kube_simulated.kwok(self.options, self.files))

    def _simulate(self, count: int) -> None:
        """Add simulated nodes."""
        kube_simulated.add(self.connect, range(count), tainted=bool(self.nodes))

    # The control plane

    def _start_control_plane(self) -> None:
        """Write its configuration, and start it; returns when pods can be created."""
        for directory in (self.files.directory, self.files.logs, self.files.pki):
            directory.mkdir(mode=0o700, exist_ok=True)  # with a token of these, others could become root
        users = USERS | {f"kubelet-{node.name}": (f"system:node:{node.name}", "system:nodes") for node in self.nodes}
        self._tokens = {name: secrets.token_hex(16) for name in users} | self._tokens
        lines = [f'{self._tokens[name]},{user},{name},"{group}"\n' for name, (user, group) in users.items()]
        self.files.tokens.write_text("".join(lines))
        key = ("openssl", "genrsa", "-out", str(self.files.pki / "accounts.key"), "2048")
        processes.run(key, timeout_s=120, check=True)
        certificate, own_key = map(str, self.files.kubelet_client)
        subject = ("-subj", "/O=system:masters/CN=kube-apiserver", "-days", "3650")
        made = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", own_key, "-out", certificate)
        processes.run((*made, *subject), timeout_s=120, check=True)
        self._start("etcd", ETCD, kube_conf.etcd(self.files.directory))
        self.start_api()
        for name, (user, _) in users.items():
            self._write_kubeconfig(self.files.user(name), user, self._tokens[name])
        self._start("kube-controller-manager", KUBERNETES, kube_conf.controller_manager(self.options, self.files))
        self._start("kube-scheduler", KUBERNETES, kube_conf.scheduler(self.options, self.files))
        self._wait_account("default")

    def _start_dns(self) -> None:
        """Start CoreDNS on the controller, where pods reach it without a Service."""
        names = {node.name: node.host.address for node in self.nodes}
        corefile = self.files.directory / "Corefile"
        corefile.write_text(kube_node_conf.corefile(self.controller.address, self.kubeconfig, names))
        self._start("coredns", COREDNS, {"conf": str(corefile)})

    def start_api(self) -> None:
        """Start the API server, and wait until it is ready."""
        self._start(
            "kube-apiserver", KUBERNETES, kube_conf.apiserver(self.options, self.files, self.controller.address)
        )
        wait_until(
            f"kube-apiserver to be ready (see {self.files.logs})", self._is_ready, limit_s=START_LIMIT_S, every_s=0.05
        )

    def stop_api(self, number: int = signal.SIGKILL) -> None:
        """Stop the API server: SIGKILL is a crash, SIGTERM a clean shutdown. Pods on the nodes keep running."""
        self._stop("kube-apiserver", number)
        self.api.close()

    def restart_api(self, number: int = signal.SIGKILL) -> None:
        """Stop the API server and start it again."""
        self.stop_api(number)
        self.start_api()

    def is_running(self) -> bool:
        """Whether the API server runs."""
        return self._running("kube-apiserver")

    def _is_ready(self) -> bool:
        """Whether the API server responds; raises `TestbedError` if it or etcd has exited."""
        for name in ("etcd", "kube-apiserver"):
            if not self._running(name):
                raise TestbedError(f"{name} has ended: {self._last_words(name)}")
        with contextlib.suppress(TestbedError, OSError):
            return self.files.ca.exists() and self.api.text("/readyz") == "ok"
        return False

    def close(self) -> None:
        """Close the connections; the programs are killed with the testbed."""
        for api in (self._api, *(node.api for node in self.nodes)):
            if api:
                api.close()

    def know_name(self, host: str) -> None:
        """Let the hosts resolve one more name to the controller, where the API server runs."""
        with (self.files.directory.parent / "etc/hosts").open("a") as file:  # in place: it is bind-mounted
            file.write(f"{self.controller.address}\t{host}\n")

    # Internals

    def _start(self, name: str, build: kube_builds.Build, flags: dict[str, str]) -> None:
        """Start a daemon on the controller, which writes to its log."""
        if self._running(name):
            raise TestbedError(f"{name} is already running")
        argv = (kube_programs.find(build, name), *kube_conf.flags(flags))
        self._daemons[name] = self.controller.daemon(argv, self.files.logs / f"{name}.log")

    def _running(self, name: str) -> bool:
        """Whether this daemon runs."""
        return name in self._daemons and self._daemons[name].poll() is None

    def _stop(self, name: str, number: int) -> None:
        """Stop a daemon and wait for it."""
        daemon = self._daemons[name]
        daemon.send_signal(number)
        daemon.wait(timeout=120)

    def last_words(self, lines: int = 8) -> str:
        """The end of each program's log."""
        ends = []
        for path in sorted(self.files.logs.glob("*.log")):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - 300 * lines))
                said = file.read().decode(errors="replace").splitlines()[-lines:]
            ends.append(f"{path.name}:\n" + "".join(f"    {line[:400]}\n" for line in said))
        return "".join(ends)

    def _last_words(self, name: str) -> str:
        """The end of a daemon's log."""
        return (self.files.logs / f"{name}.log").read_text(errors="replace").strip()[-600:]
