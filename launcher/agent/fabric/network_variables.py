"""Variables for NCCL, gloo, UCX and libfabric, each with its reason: only if their own choice is wrong on this node.

What the user or the administrator has set always takes precedence.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..named_tuple import NamedTuple
from ..network import routes
from ..system import files
from ..system.natural_order import natural
from . import library_defaults, pci_tree, rdma
from .discovery import Fabric, read
from .nic import Nic
from .rdma import Hca
from .sources import Tree

_PREFIXES = ("NCCL_", "RCCL_", "GLOO_", "UCX_", "FI_", "OFI_NCCL_", "RDMAV_", "TORCH_NCCL_", "TP_")
_IN_CONF = r"^\s*((?:NCCL|RCCL)_\w+)\s*=(.*?)\s*$"
_DYNAMIC_GID = (2, 21)
"""From this version on, NCCL itself looks for a RoCE v2 entry; older versions take index 0."""

_OFI_PLUGINS = ("/opt/amazon/ofi-nccl/lib", "/opt/aws-ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu")


class Variable(NamedTuple):
    """One variable as the workers get it."""

    name: str
    value: str
    source: str
    """`chosen`, `environment`, `--env`, or the file that sets it."""

    reason: str


class Choice:
    """What is set on this node, what deserves a warning, and what depends on which peers can be reached."""

    def __init__(self, interfaces: Dict[str, str]) -> None:
        self.variables: List[Variable] = []
        self.notes: List[str] = []
        self.interfaces = interfaces
        """Candidate addresses, best first, each with its interface."""

        self.nccl_default: List[str] = []
        """Interfaces that NCCL would use for its sockets; empty if NCCL is not used."""

        self.gloo_default = ""
        """The interface that gloo would use."""

        self.ucx_default: List[str] = []
        """Interfaces that UCX would use; empty if it has RDMA devices."""

    def to_json(self) -> Dict[str, Any]:
        """The choice as JSON for the agent stream."""
        return {**self.__dict__, "variables": [variable._asdict() for variable in self.variables]}


def given(env: Mapping[str, str], job_env: Mapping[str, str], tree: Optional[Tree] = None) -> List[Variable]:
    """What the user has set in the environment or with --env, and what NCCL's configuration files set."""
    found = [
        Variable(name, env[name], "--env" if name in job_env else "environment", "set by you")
        for name in sorted(env)
        if name.startswith(_PREFIXES)
    ]
    texts = ((path, tree.text(path)) for path in _conf_files(env)) if tree else ()
    for path, text in texts:
        for name, value in re.findall(_IN_CONF, text, re.MULTILINE) if text else ():
            if name not in env:
                found.append(Variable(name, value, path, "NCCL reads that file"))
    return found


def _conf_files(env: Mapping[str, str]) -> List[str]:
    own = env.get("NCCL_CONF_FILE") or (os.path.join(env["HOME"], ".nccl.conf") if env.get("HOME") else "")
    return [path for path in (own, "/etc/nccl.conf", "/etc/rccl.conf") if path]


def choose(
    fabric: Fabric, env: Mapping[str, str], *, tree: Tree, gpus: int, nccl: Optional[Tuple[int, ...]] = None
) -> Choice:
    """Choose for a node of a multi-node run.

    Args:
        env: the workers' environment.
        gpus: number of GPUs that the workers see; with none, NCCL is not used.
        nccl: NCCL's version, if known.
    """
    named = routes.resolve(socket.gethostname())
    choice = Choice(interfaces=library_defaults.candidates(fabric.nics, named))
    fast = usable_ports(fabric, env, tree)
    efa = bool(fast) and fast[0].kind == "EFA"
    if fast and not efa:
        _choose_ports(choice, fabric, fast)
        if gpus:
            _choose_gid(choice, fast, nccl)
            _choose_levels(choice, fabric, fast, env)
    if efa:
        _look_at_efa(choice, fabric, env, tree)
    _note_limits(choice, fabric, tree)
    if gpus:
        default = library_defaults.nccl_interfaces(fabric.nics)
        choice.nccl_default = default[:1] if fast and not efa else default
    choice.gloo_default = library_defaults.gloo_interface(fabric.nics, named)
    choice.ucx_default = (
        [] if fast and not efa else [nic.name for nic in fabric.nics if nic.carries and nic.kind != "loopback"]
    )
    choice.variables = [variable for variable in choice.variables if variable.name not in env]
    return choice


def for_node(
    env: Mapping[str, str], job_env: Mapping[str, str], gpus: int, file: str, open_files: int
) -> Dict[str, Any]:
    """This host's choice as JSON, including what the user has set; the facts behind it are written to `file`.

    `open_files`: how many files workers may open.
    """
    tree = Tree()
    set_already = given(env, job_env, tree)
    found = read(tree, open_files=open_files)
    known = {**env, **{variable.name: variable.value for variable in set_already}}
    choice = choose(found, known, tree=tree, gpus=gpus, nccl=library_defaults.nccl_version(sys.path))
    choice.variables += set_already
    with contextlib.suppress(OSError):  # a full disk: the run does not need the file
        files.write_whole(file, json.dumps(found.to_json(), indent=1).encode(), sync=False)
    return choice.to_json()


def settle(choice: Mapping[str, Any], usable: Sequence[str], env: Mapping[str, str], why: str) -> List[Variable]:
    """The variables that depend on which of this node's interfaces the peers reach.

    Args:
        choice: a `Choice` as JSON.
        usable: interfaces that all peers reach, best first.
        why: how this is known, in words that precede the interfaces in a reason.
    """
    found = []
    usable = [name for name in usable if name != "lo"]  # of an interface, libraries take the first address: 127.0.0.1
    if not usable:
        return []
    wrong = [name for name in choice["nccl_default"] if name not in usable]
    if wrong:
        reason = f"NCCL would use {', '.join(choice['nccl_default'])}, but {why} {', '.join(usable)}"
        found.append(Variable("NCCL_SOCKET_IFNAME", f"={usable[0]}", "chosen", reason))
    if choice["gloo_default"] not in usable:
        reason = f"gloo would use {choice['gloo_default']}, but {why} {', '.join(usable)}"
        found.append(Variable("GLOO_SOCKET_IFNAME", usable[0], "chosen", reason))
    others = [name for name in choice["ucx_default"] if name not in usable]
    if others:
        reason = f"UCX would use {', '.join(others)} as well, but {why} {', '.join(usable)}"
        found.append(Variable("UCX_NET_DEVICES", usable[0], "chosen", reason))
    return [variable for variable in found if variable.name not in env]


# -- RDMA -------------------------------------------------------------------------------------------------------------


def compute_ports(fabric: Fabric) -> List[Hca]:
    """The active ports of the fabric between the GPUs: those of the kind and rate with the highest total rate.

    Ports of another rate belong to it if a GPU has no other port close to it: a rail whose link is degraded.
    """
    groups: Dict[Tuple[str, float], List[Hca]] = {}
    for hca in fabric.hcas:
        if hca.active and (hca.kind != "RoCE" or not hca.gids or any(gid.version == 2 for gid in hca.gids)):
            groups.setdefault((hca.kind, hca.rate_gbps), []).append(hca)
    if not groups:
        return []
    chosen = max(groups, key=lambda key: (key[1] * len(groups[key]), key[1]))
    ports = list(groups[chosen])
    served = {hca.name for hca in ports}
    for near in fabric.nearest.values():
        close = [name for name, far in near.items() if pci_tree.DISTANCES.index(far) < 2]
        if close and not served & set(close):
            ports += [
                hca for (kind, _), group in groups.items() if kind == chosen[0] for hca in group if hca.name in close
            ]
    return sorted({hca.id: hca for hca in ports}.values(), key=lambda hca: natural(hca.id))


def usable_ports(fabric: Fabric, env: Mapping[str, str], tree: Tree) -> List[Hca]:
    """The same, if workers with these variables may use any."""
    return compute_ports(fabric) if rdma.has_files(tree) and env.get("NCCL_IB_DISABLE", "0") == "0" else []


def _choose_ports(choice: Choice, fabric: Fabric, fast: Sequence[Hca]) -> None:
    """NCCL and UCX use all active ports by default, which is wrong if some belong to another network."""
    names = {hca.id for hca in fast}
    rest = [hca for hca in fabric.hcas if hca.active and hca.id not in names]
    slower = sorted({hca.rate_gbps for hca in fast})
    if len(slower) > 1:
        slow = ", ".join(hca.name for hca in fast if hca.rate_gbps < slower[-1])
        choice.notes.append(f"{slow}: {slower[0]:g} Gb/s, where the other ports of this fabric have {slower[-1]:g}")
    if not rest:
        return
    others = ", ".join(f"{hca.name} ({hca.kind}, {hca.rate_gbps:g} Gb/s)" for hca in rest)
    reason = f"{len(fast)} x {fast[0].kind} at {fast[0].rate_gbps:g} Gb/s are one fabric; not part of it: {others}"
    choice.variables.append(Variable("NCCL_IB_HCA", "=" + ",".join(hca.id for hca in fast), "chosen", reason))
    choice.variables.append(Variable("UCX_NET_DEVICES", ",".join(hca.id for hca in fast), "chosen", reason))


def _choose_gid(choice: Choice, fast: Sequence[Hca], nccl: Optional[Tuple[int, ...]]) -> None:
    """Choose the GID table entry for RoCE if NCCL would choose a wrong one."""
    if fast[0].kind != "RoCE":
        return
    routable = [[gid for gid in hca.gids if gid.version == 2 and not gid.gid.startswith("fe80")] for hca in fast]
    four = [{gid.index for gid in gids if gid.ipv4} for gids in routable]
    six = [{gid.index for gid in gids if not gid.ipv4} for gids in routable]
    if nccl is not None and nccl >= _DYNAMIC_GID:
        if not any(four) and all(six):
            reason = "the RoCE v2 entries of these ports are IPv6 ones, and NCCL looks for IPv4"
            choice.variables.append(Variable("NCCL_IB_ADDR_FAMILY", "AF_INET6", "chosen", reason))
        return
    common = set.intersection(*four) or set.intersection(*six)
    if all(any(gid.index == 0 and gid.version == 2 for gid in hca.gids) for hca in fast):
        return
    if not common:
        choice.notes.append(
            f"no index is a routable RoCE v2 GID on all of {', '.join(hca.name for hca in fast)}; NCCL needs one"
        )
        return
    version = ".".join(map(str, nccl)) if nccl else "of unknown version"
    reason = f"index 0, which NCCL ({version}) takes, is not RoCE v2; this one is, on all {len(fast)} ports"
    choice.variables.append(Variable("NCCL_IB_GID_INDEX", str(min(common)), "chosen", reason))


def _choose_levels(choice: Choice, fabric: Fabric, fast: Sequence[Hca], env: Mapping[str, str]) -> None:
    """GPUDirect if a hypervisor hides the PCIe switches; no traffic between rails that have no route to each other."""
    names = {hca.name for hca in fast}
    far = [
        pci_tree.DISTANCES.index(far) for near in fabric.nearest.values() for name, far in near.items() if name in names
    ]
    if fabric.limits.virtual and fabric.gpudirect and far and min(far) >= 2 and "NCCL_TOPO_FILE" not in env:
        reason = (
            f"the virtual machine shows no PCIe switches, so NCCL would not use GPUDirect ({fabric.gpudirect} is there)"
        )
        level = pci_tree.DISTANCES[min(far)].replace("NODE", "PHB")  # as NCCL calls what is below one NUMA node
        choice.variables.append(Variable("NCCL_NET_GDR_LEVEL", level, "chosen", reason))
    by_name = {nic.name: nic for nic in fabric.nics}
    rails = [by_name[hca.netdev] for hca in fast if hca.netdev in by_name and by_name[hca.netdev].addresses]
    apart = len(rails) == len(fast) > 1 and len({_subnet(rail) for rail in rails}) == len(rails)
    if apart and not {rail.name for rail in rails} & set(fabric.gateways):
        reason = f"{len(rails)} rails, each a subnet of its own without a gateway: none reaches another"
        choice.variables.append(Variable("NCCL_CROSS_NIC", "0", "chosen", reason))


def _subnet(nic: Nic) -> str:
    import ipaddress  # 1 ms, and few hosts have several rails

    return str(ipaddress.ip_interface(nic.addresses[0]).network)


def _look_at_efa(choice: Choice, fabric: Fabric, env: Mapping[str, str], tree: Tree) -> None:
    directories = [*env.get("LD_LIBRARY_PATH", "").split(":"), *_OFI_PLUGINS]
    if "NCCL_NET_PLUGIN" not in env and not any(
        tree.exists(f"{directory}/libnccl-net.so") for directory in directories if directory
    ):
        choice.notes.append(
            f"{len(fabric.hcas)} EFA devices, but no libnccl-net.so (aws-ofi-nccl): NCCL would use TCP; install it"
        )
    kernel = re.match(r"(\d+)\.(\d+)", fabric.limits.kernel)
    if kernel and (int(kernel[1]), int(kernel[2])) < (5, 13):
        reason = f"kernel {fabric.limits.kernel} does not copy pinned pages at a fork, and data loaders fork"
        choice.variables.append(Variable("FI_EFA_FORK_SAFE", "1", "chosen", reason))


def _note_limits(choice: Choice, fabric: Fabric, tree: Tree) -> None:
    if not any(hca.active for hca in fabric.hcas):
        return
    memlock = fabric.limits.memlock_bytes
    if memlock is not None and memlock < 1 << 30:
        choice.notes.append(f"locked memory is limited to {memlock // 1024} KiB; RDMA needs it unlimited (ulimit -l)")
    if not rdma.has_files(tree):
        choice.notes.append("there are RDMA devices but no /dev/infiniband: the container was started without them")
