"""Configuration of a real node's programs: kubelet, containerd and the network plugins."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from testbed import kube_image
from testbed.kube_conf import DOMAIN, KubeOptions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CNI_BIN = "/usr/lib/cni"
"""The directory of Debian's containernetworking-plugins."""

SYSCTLS: Mapping[str, int] = {
    "vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000, "kernel/keys/root_maxbytes": 25000000,
}  # fmt: skip
"""What a kubelet would set for the whole host; hosts see these values as already set, so it leaves them alone."""


def pod_network(number: int) -> str:
    """The addresses of a node's pods, to which only hosts of the testbed have routes."""
    return f"10.244.{number}.0/24"


def kubelet(options: KubeOptions, address: str, dns: str, cgroup: str, clients: Path) -> str:
    """A kubelet's configuration. `clients`: the certificate of the only one that it obeys."""
    lease_s = max(4, options.lost_after_s * 3 // 4)  # renewed four times in that time
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": address,
            "authentication": {
                "anonymous": {"enabled": False},  # it would run programs in pods for all users of this machine
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(clients)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroup}",
            "clusterDNS": [dns],
            "clusterDomain": DOMAIN,
            "configMapAndSecretChangeDetectionStrategy": "Watch",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "enforceNodeAllocatable": ["none"],
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "failCgroupV1": False,
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "makeIPTablesUtilChains": False,
            "nodeLeaseDurationSeconds": lease_s,
            "nodeStatusUpdateFrequency": "2s",
            "podLogsDir": "/var/lib/kubelet/pod-logs",
            "readOnlyPort": 0,
            "resolvConf": "/etc/resolv.conf",
            "serializeImagePulls": False,
        },
        indent=1,
    )


def containerd(directory: Path) -> str:
    """containerd's configuration, for version 1.6 and later ones that still read it."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", \
"io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.tracing", \
"io.containerd.tracing.processor.v1.otlp"]

[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"

[{cri}]
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true  # without CAP_SYS_RESOURCE runc cannot lower it
  sandbox_image = "{kube_image.PAUSE}"

[{cri}.cni]
  bin_dir = "{CNI_BIN}"
  conf_dir = "{directory}/cni"

[{cri}.containerd]
  snapshotter = "native"  # the image is almost empty, and this works on any file system
  default_runtime_name = "runc"

[{cri}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  base_runtime_spec = "{directory}/runtime.json"
"""


def cni(number: int) -> str:
    """The network configuration: a bridge in each host; the hosts have routes to one another's."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": pod_network(number)}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}, indent=1)


def corefile(address: str, kubeconfig: Path, hosts: Mapping[str, str]) -> str:
    """DNS for Services and for the testbed's hosts; other names do not exist."""
    known = "".join(f"        {place} {name}\n" for name, place in hosts.items())
    return f"""{DOMAIN}:53 in-addr.arpa:53 {{
    bind {address}
    errors
    kubernetes {DOMAIN} in-addr.arpa {{
        kubeconfig {kubeconfig}
        ttl 5
    }}
}}
.:53 {{
    bind {address}
    errors
    hosts {{
{known}    }}
}}
"""
