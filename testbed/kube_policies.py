"""Enforces NetworkPolicies on real nodes, on demand, with the part of kube-router that k3s has."""

from __future__ import annotations

import signal
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from testbed import kube_programs, packages
from testbed.errors import NotAvailableError, TestbedError
from testbed.kube_builds import KUBE_ROUTER
from testbed.kube_conf import flags
from testbed.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from testbed.kube_node import KubeNode

PROGRAM = "kube-policies"
RULES = """*filter
:PROBE - [0:0]
-A PROBE -m set --match-set probe src -m comment --comment probe -j MARK --set-xmark 1/1
-A PROBE -m physdev --physdev-is-bridged -m conntrack --ctstate INVALID -j DROP
-A PROBE -m mark ! --mark 1/1 -m limit --limit 1/second -j NFLOG
-A PROBE -p tcp -m addrtype --src-type LOCAL -m multiport --dports 1:2 -j REJECT
COMMIT
"""
"""Rules that probe what it needs of the kernel."""


@contextmanager
def enforced(nodes: Sequence[KubeNode]) -> Iterator[None]:
    """Enforce NetworkPolicies for the pods of these nodes within the context, or raise `NotAvailableError`."""
    packages.require(packages.KUBERNETES_POLICIES)
    kube_programs.require(KUBE_ROUTER)
    with ExitStack() as stack:
        for node in nodes:
            _probe(node)
            stack.callback(_forget, node)
        daemons = {node.name: _start(node) for node in nodes}
        for daemon in daemons.values():
            stack.callback(_end, daemon)
        for node in nodes:
            _wait_begun(node, daemons[node.name])
        yield


def _probe(node: KubeNode) -> None:
    """Raise `NotAvailableError` if the kernel lacks what it needs."""
    for argv, stdin in ((("ipset", "create", "probe", "hash:ip"), ""), (("iptables-restore", "--noflush"), RULES)):
        done = node.host.run(argv, stdin=stdin)
        if done.returncode:
            words, *_ = done.stderr.splitlines() or [""]
            raise NotAvailableError(f"no NetworkPolicies here: {' '.join(argv)}: {words}")


def _start(node: KubeNode) -> subprocess.Popen[Any]:
    """Run it on a node; it starts with the existing pods and policies."""
    values = {"kubeconfig": str(node.files.kubeconfig), "hostname-override": node.name, "v": "1"}
    return node.host.daemon((kube_programs.find(KUBE_ROUTER, PROGRAM), *flags(values)), _log(node))


def _wait_begun(node: KubeNode, daemon: subprocess.Popen[Any]) -> None:
    """Wait until its own chains exist; from then on it follows pods and policies."""

    def begun() -> bool:
        if daemon.poll() is not None:
            raise TestbedError(f"the {PROGRAM} of {node.name} has ended: {_log(node).read_text()[-800:]}")
        return node.host.run(("iptables", "--list-rules", "KUBE-NWPLCY-DEFAULT")).returncode == 0

    wait_until(f"the {PROGRAM} of {node.name} to begin (see {_log(node)})", begun, limit_s=120)


def _end(daemon: subprocess.Popen[Any]) -> None:
    daemon.send_signal(signal.SIGTERM)
    daemon.wait(timeout=120)


def _log(node: KubeNode) -> Path:
    return node.files.logs / f"{PROGRAM}-{node.name}.log"


def _forget(node: KubeNode) -> None:
    """Remove all rules: nothing else on a node has any."""
    for argv in (("iptables", "--flush"), ("iptables", "--delete-chain")):
        node.host.run(argv, check=True)
    # The kernel releases a rule's sets a moment after the rule.
    wait_until(f"the sets of {node.name} to be gone", lambda: node.host.run(("ipset", "destroy")).returncode == 0)
