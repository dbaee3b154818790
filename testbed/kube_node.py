"""A real node: a host of the testbed with kubelet, containerd, runc and a network for its pods."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed import kube_cgroups, kube_image, kube_node_conf, kube_programs, processes
from testbed.errors import TestbedError
from testbed.kube_builds import KUBERNETES
from testbed.kube_conf import flags
from testbed.network import escape
from testbed.ssh import listens
from testbed.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from testbed.hosts import Host
    from testbed.kube_api import KubeApi, Object
    from testbed.kube_conf import KubeFiles, KubeOptions
    from testbed.processes import Process

READY_LIMIT_S = 120
OWN = {"/var/lib/kubelet": "kubelet", "/var/lib/containerd": "containerd", "/var/lib/cni": "cni-state"}
"""Directories that programs use regardless of settings, or whose paths must be short; each node has its own."""

QUICK = {"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "4", "HTTP2_PING_TIMEOUT_SECONDS": "3"}
"""How soon a kubelet drops a silent connection (defaults: 30 and 15), which delays the return of a cut-off node."""

IN_MEMORY = ("/run/containerd", "/var/log")
HIDDEN = (*OWN, *IN_MEMORY)


@dataclass
class KubeNode:
    """One node, named like its host. `host.cut_off()` and `host.slow_link()` affect its pods too."""

    host: Host
    number: int
    """Counted from 1."""

    cgroup: str
    """The name of its control groups."""

    options: KubeOptions
    files: KubeFiles
    api: KubeApi = field(repr=False)
    _daemons: dict[str, subprocess.Popen[Any]] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """Its name, as `kubectl get nodes` shows it."""
        return self.host.name

    @property
    def directory(self) -> Path:
        """The directory of its files."""
        return self.files.directory / self.name

    def set_up(self, dns: str) -> None:
        """Write its configuration and mount its own directories; `start` starts the programs."""
        (self.directory / "cni").mkdir(parents=True)
        (self.directory / "cni" / "pods.conflist").write_text(kube_node_conf.cni(self.number))
        (self.directory / "containerd.toml").write_text(kube_node_conf.containerd(self.directory))
        (self.directory / "kubelet.yaml").write_text(
            kube_node_conf.kubelet(self.options, self.host.address, dns, self.cgroup, self.files.kubelet_client[0])
        )
        plain = json.loads(self.host.run(("ctr", "oci", "spec"), check=True).stdout)
        (self.directory / "runtime.json").write_text(json.dumps(kube_image.runtime_spec(plain)))
        fstab = self.directory / "fstab"
        fstab.write_text("".join(self._mounts()))
        self.host.run(("mount", "--all", "--fstab", str(fstab)), check=True, cwd="/")
        kube_cgroups.make(self.cgroup)

    def _mounts(self) -> list[str]:
        """Its private mounts, as lines of an fstab."""
        lines = []
        for place, name in OWN.items():
            Path(place).mkdir(parents=True, exist_ok=True)
            (self.directory / name).mkdir()
            lines.append(f"{escape(self.directory)}/{name} {place} none bind 0 0\n")
        for place in IN_MEMORY:
            Path(place).mkdir(parents=True, exist_ok=True)
            lines.append(f"tmpfs {place} tmpfs mode=755 0 0\n")
        for name, value in kube_node_conf.SYSCTLS.items():
            file = self.directory / name.replace("/", ".")
            file.write_text(f"{value}\n")
            if Path("/proc/sys", name).exists():
                lines.append(f"{escape(file)} /proc/sys/{name} none bind 0 0\n")
        return lines

    # Its programs

    def start(self) -> None:
        """Start containerd and kubelet, as on `up`, or again after `kill`; returns when the node is Ready."""
        self.start_containerd()
        self.start_kubelet()
        self.wait_ready()
        self.gpus(self.options.gpus_per_host)

    def start_containerd(self) -> None:
        """Start containerd, and import the images."""
        self._start("containerd", ("containerd", "--config", str(self.directory / "containerd.toml")))
        answers = ("ctr", "--connect-timeout=2s", "version")
        wait_until(
            f"the containerd of {self.name} to answer (see {self.files.logs})",
            lambda: self._alive("containerd") and self.host.run(answers).returncode == 0,
            limit_s=120,
        )
        archive = str(self.files.images)
        self.host.run(
            ("ctr", "--namespace=k8s.io", "images", "import", "--snapshotter=native", archive),
            timeout_s=120,
            check=True,
        )

    def start_kubelet(self) -> None:
        """Start the kubelet, and wait until the API server can request logs from it; running pods continue."""
        values = {
            "config": str(self.directory / "kubelet.yaml"),
            "kubeconfig": str(self.files.user(f"kubelet-{self.name}")),
            "hostname-override": self.name,
            "node-ip": self.host.address,
            **self.options.flags.get("kubelet", {}),
        }
        self._start("kubelet", (kube_programs.find(KUBERNETES, "kubelet"), *flags(values)))
        wait_until(
            f"the kubelet of {self.name} to listen (see {self.files.logs})", self._listens, limit_s=120, every_s=0.05
        )

    def stop_kubelet(self, number: int = signal.SIGKILL) -> None:
        """Stop the kubelet: its pods keep running, and after `lost_after_s` the node is NotReady."""
        daemon = self._daemons["kubelet"]
        daemon.send_signal(number)
        daemon.wait(timeout=120)

    def kill(self) -> None:
        """Kill the node with all its pods; its network stays, so connections are reset (cf. `host.cut_off()`)."""
        self.host.kill()
        kube_cgroups.kill(self.cgroup)

    def containers(self) -> list[Process]:
        """The processes of its pods, their sandboxes included."""
        return kube_cgroups.processes(self.cgroup)

    # As the API server sees it

    def status(self) -> Object:
        """The node's `status`; empty before it has registered."""
        node = self.api.get_or_none(f"/api/v1/nodes/{self.name}")
        return dict(node["status"]) if node else {}

    def is_ready(self) -> bool:
        """Whether the API server considers it Ready."""
        conditions = {condition["type"]: condition["status"] for condition in self.status().get("conditions", ())}
        return conditions.get("Ready") == "True"

    def wait_ready(self, *, limit_s: float = READY_LIMIT_S) -> None:
        """Wait until it is Ready."""

        def ready() -> bool:
            self._check()
            return self.is_ready()

        wait_until(f"node {self.name} to be Ready (see {self.files.logs})", ready, limit_s=limit_s)

    def wait_lost(self, *, limit_s: float = 120) -> None:
        """Wait until the API server considers it lost."""
        wait_until(f"node {self.name} to be NotReady", lambda: not self.is_ready(), limit_s=limit_s)

    def gpus(self, number: int, resource: str = "nvidia.com/gpu") -> None:
        """Report this number of GPUs; returns when pods can request them."""
        if not number and resource not in self.status()["capacity"]:
            return
        said = {"capacity": {resource: str(number)}, "allocatable": {resource: str(number)}}
        self.api.patch(f"/api/v1/nodes/{self.name}/status", {"status": said})

    def label(self, **labels: str | None) -> None:
        """Set labels, or remove them with None; names with slashes as `**{"topology.kubernetes.io/zone": "a"}`."""
        self.api.patch(f"/api/v1/nodes/{self.name}", {"metadata": {"labels": labels}})

    def cordon(self, on: bool = True) -> None:
        """Keep new pods off the node, or allow them again."""
        self.api.patch(f"/api/v1/nodes/{self.name}", {"spec": {"unschedulable": on}})

    # Internals

    def _listens(self) -> bool:
        """Whether the kubelet listens."""
        self._check()
        return listens(self.host, 10250)

    def _check(self) -> None:
        """Raise `TestbedError` if one of its programs has exited."""
        for name in self._daemons:
            if not self._alive(name):
                raise TestbedError(f"the {name} of {self.name} has ended: {self._log(name).read_text()[-800:]}")

    def _start(self, name: str, argv: tuple[str, ...]) -> None:
        """Start one of its programs, which writes to its log."""
        if self._alive(name):
            raise TestbedError(f"the {name} of {self.name} is already running")
        self._daemons[name] = self.host.daemon(argv, self._log(name), env=QUICK)

    def _alive(self, name: str) -> bool:
        """Whether one of its programs runs."""
        return name in self._daemons and self._daemons[name].poll() is None

    def _log(self, name: str) -> Path:
        return self.files.logs / f"{name}-{self.name}.log"


def join_networks(controller: Host, nodes: Sequence[KubeNode]) -> None:
    """Add routes between the pods of all nodes, and to them from the controller, where DNS is."""
    for member in (controller, *(node.host for node in nodes)):
        others = [node for node in nodes if node.host is not member]
        batch = "".join(
            f"route add {kube_node_conf.pod_network(node.number)} via {node.host.address}\n" for node in others
        )
        processes.run(("ip", "-netns", member.netns, "-batch", "-"), stdin=batch, timeout_s=120, check=True)
