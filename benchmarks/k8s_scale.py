"""What runs of thousands of pods cost `distlaunch k8s` on a real API server. Needs root, and Go once.

    python benchmarks/k8s_scale.py [--pods 1000,5000]

etcd, kube-apiserver, kube-controller-manager and kube-scheduler are real. The nodes are simulated, one for each pod,
and so are their kubelets (`_kubelets.py`). The commands are run by a service account with the Role that `distlaunch k8s
--print-role` prints. Calls are those that the API server's audit log has of that account, and of no one else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, urlsplit

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._kubelets import Kubelets, line
from benchmarks._measure import Contender, environment, measure
from benchmarks._memory import Peak
from benchmarks.scale import slope
from launcher.backends.kubernetes.demand import MOST_FOLLOWED
from testbed import Testbed, kube_builds, kube_programs, packages, wait_until
from testbed.kube_conf import KubeOptions
from testbed.kube_image import PINNED

if TYPE_CHECKING:
    from testbed import Kube

SUBMISSION_CALLS = 8
PAGE = 500
"""A list of pods may take so many at once."""

LIMIT_S = 420
ACCOUNT = "launcher"
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["ResponseStarted", "ResponseComplete", "Panic"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}
"""A request is noted before it is answered; the only service accounts here are the launcher's."""


class Cost(NamedTuple):
    """Of one command, for one size."""

    nodes: int
    calls: int
    lists: int
    """Lists of pods, each with all its pages."""

    logs: int
    """Logs that were opened."""

    cpu_s: float
    mib: float
    wall_s: float


class Audit:
    """The requests of the launcher, by the API server's log."""

    def __init__(self, scratch: Path) -> None:
        self._path, policy = scratch / "audit.log", scratch / "policy.json"
        policy.write_text(json.dumps(POLICY))
        self.flags = {"audit-policy-file": str(policy), "audit-log-path": str(self._path)}
        self._read = 0

    def new(self) -> list[str]:
        """Those since the last call, as `create /apis/...`."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            found = [json.loads(text) for text in file.read().splitlines()]
            self._read = file.tell()
        return [f"{each['verb']} {each['requestURI']}" for each in found]


class Shell:
    """Runs commands of the launcher in one namespace, and measures them."""

    def __init__(self, kube: Kube, scratch: Path, audit: Audit) -> None:
        self.namespace, self._audit = kube.namespace("scale"), audit
        home = scratch / self.namespace
        home.mkdir()
        self._env = {**environment(home), "DISTLAUNCH_NAMESPACE": self.namespace, "DISTLAUNCH_IMAGE": PINNED}
        self._directory = scratch / "project"
        printed = self("k8s", "--print-role")[0]
        rules = yaml.safe_load(printed)["rules"]
        self._env["KUBECONFIG"] = str(kube.account(self.namespace, ACCOUNT, rules))

    def __call__(self, *words: str, nodes: int = 0) -> tuple[str, Cost, list[str]]:
        """What it prints, what it costs, and its requests."""
        argv = [sys.executable, "-m", "distlaunch", *words]
        peaks: list[Peak] = []  # not the kernel's own, which counts what this process had when it forked
        sample = measure(
            Contender(words[0], argv, self._env, str(self._directory)),
            watch=lambda pid: peaks.append(Peak(lambda: pid)),
            detached=False,
        )
        if sample.exit_code:
            raise SystemExit(f"{' '.join(words)}: exit code {sample.exit_code}: {sample.output[-3000:]}")
        calls = self._audit.new() if "KUBECONFIG" in self._env else []
        targets = [(urlsplit(call.split(" ")[1]), call.split(" ")[0]) for call in calls]
        lists = [url for url, verb in targets if url.path.endswith("/pods") and verb == "list"]
        first = sum("continue" not in parse_qs(url.query) for url in lists)
        logs = sum(url.path.endswith("/log") for url, _ in targets)
        cost = Cost(nodes, len(calls), first, logs, sample.cpu_s, peaks[0].rss_bytes / 2**20, sample.wall_s)
        return sample.output, cost, calls


def running(kube: Kube, namespace: str) -> int:
    """How many pods run, by the Job's own count, which is cheap."""
    jobs = kube.api.get(f"/apis/batch/v1/namespaces/{namespace}/jobs")["items"]
    return sum(int(job["status"].get("ready", 0)) for job in jobs)


def run(kube: Kube, shell: Shell, nodes: int) -> dict[str, Cost]:
    """Start a run of this size, and look at it with each command."""
    costs: dict[str, Cost] = {}

    def measured(name: str, *words: str) -> str:
        printed, costs[name], calls = shell(*words, nodes=nodes)
        print(f"{name}: {len(printed.splitlines())} lines, {costs[name]}", flush=True)
        if ratios(name, costs[name]).get("API calls", 0) > 1:
            print("\n".join(calls))
        return printed

    began, starts = time.monotonic(), ("k8s", "--nodes", str(nodes), "--detach", "--output", "json")
    printed = measured("submission", *starts, "--gpus-per-node", "8", "x.py")
    found = json.loads(printed.splitlines()[-1])["result"]["run"]  # notes come before
    wait_until(f"{nodes} pods to run", lambda: running(kube, shell.namespace) >= nodes, limit_s=LIMIT_S, every_s=1)
    print(f"{nodes} pods run after {time.monotonic() - began:.0f} s", flush=True)
    measured("status", "status", found)
    measured("ls", "ls")
    measured("ls --on", "ls", "--on", "k8s")
    node = nodes // 2
    if line(node) not in (printed := measured("logs of one node", "logs", "--node", str(node), found)):
        raise SystemExit(f"the log of node {node}: {printed}")
    measured("cancel --no-wait", "cancel", "--no-wait", found)
    measured("submission, no GPUs", *starts, "x.py")
    return costs


def ratios(name: str, cost: Cost) -> dict[str, float]:
    """What a command has used of what it may; of few pods, `status` may read all logs."""
    if name.startswith("submission"):
        return {"API calls": cost.calls / SUBMISSION_CALLS}
    if cost.nodes <= MOST_FOLLOWED:
        return {}
    pages = math.ceil(cost.nodes / PAGE)
    return {
        "status": {"API calls": cost.calls / (pages + 1)},  # and the log of node 0
        "logs of one node": {"logs opened": cost.logs / 2},
    }.get(name, {})


def show(found: list[dict[str, Cost]]) -> None:
    """Print the table, and the ratios to what is allowed."""
    print("| command | pods | API calls | lists of pods | logs opened | CPU s | MiB | wall s |")
    print("| --- " * 8 + "|")
    for name in found[0]:
        costs = [each[name] for each in found]
        for cost in costs:
            told = f"{cost.calls} | {cost.lists} | {cost.logs} | {cost.cpu_s:.2f} | {cost.mib:.1f} | {cost.wall_s:.1f}"
            print(f"| {name} | {cost.nodes} | {told} |")
        print(f"| {name} | slope | " + " | ".join(slope(costs, column) for column in Cost._fields[1:]) + " |")
    for each in found:
        for name, cost in each.items():
            for what, ratio in ratios(name, cost).items():
                print(f"{cost.nodes} pods, {name}, {what}: ratio to what is allowed {ratio:.3f}")


def sizes(text: str) -> tuple[int, ...]:
    """The numbers of pods, from `A,B`."""
    return tuple(map(int, text.split(",")))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=sizes, default="1000,5000", help="sizes of the runs")
    options = parser.parse_args()
    rate = {"kube-api-qps": "2000", "kube-api-burst": "4000"}
    packages.require(packages.KUBERNETES)
    kube_programs.require(kube_builds.ETCD, kube_builds.KUBERNETES)
    with tempfile.TemporaryDirectory() as scratch:
        audit = Audit(Path(scratch))
        Path(scratch, "project").mkdir()
        Path(scratch, "project/x.py").write_text("print(1)\n")
        flags = {"kube-apiserver": audit.flags, "kube-controller-manager": rate, "kube-scheduler": rate}
        settings = KubeOptions(nodes=False, lost_after_s=3600, flags=flags)
        with (
            Testbed().up(1, kubernetes=settings) as testbed,
            contextlib.closing(Kubelets(testbed.kube, testbed.address)) as kubelets,
        ):
            found = []
            for nodes in options.pods:
                kubelets.add(nodes)
                found.append(run(testbed.kube, Shell(testbed.kube, Path(scratch), audit), nodes))
            if kubelets.failures:
                sys.exit(f"{len(kubelets.failures)} requests of the kubelets failed: {kubelets.failures[0]}")
    show(found)


if __name__ == "__main__":
    main()
