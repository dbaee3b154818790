"""What `distlaunch k8s` costs at 1,000 nodes, against `kubectl apply` of the same Job. Needs root, and Go once.

    python benchmarks/k8s.py [--nodes 1000] [--rounds 3] [--only count,compare]

The control plane is real, the nodes are simulated by kwok. Both submit the same objects; the time is from the start of
the command until all pods run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import ROOT, Contender, environment, measure, ratios, verdict
from testbed import Testbed, kube_builds, kube_programs, wait_until
from testbed.kube_conf import KubeOptions
from testbed.kube_image import PINNED
from tests.k8s.proxy import Proxy

if TYPE_CHECKING:
    from testbed import Kube

LIMIT_S = 600


def running(kube: Kube, namespace: str, nodes: int) -> bool:
    """Whether all pods run, by the Job's own count, which is cheap."""
    jobs = kube.api.get(f"/apis/batch/v1/namespaces/{namespace}/jobs")["items"]
    return any(job["status"].get("ready", 0) >= nodes for job in jobs)


def clear(kube: Kube, namespace: str) -> None:
    """Remove everything, Jobs first: they hold pods until they count them, and simulated pods never report failure."""
    kube.api.delete(f"/apis/batch/v1/namespaces/{namespace}/jobs", propagationPolicy="Background")
    wait_until("the pods to be gone", lambda: not kube.pods(namespace), limit_s=LIMIT_S, every_s=0.5)
    kube.delete_namespace(namespace)


def start(kube: Kube, contender: Contender, namespace: str, nodes: int) -> tuple[float, float]:
    """Wall seconds until all pods run, and CPU seconds of the command."""
    began = time.monotonic()
    sample = measure(contender, detached=False)
    if sample.exit_code:
        raise RuntimeError(f"{contender.name}: {sample.output}")
    wait_until("all pods to run", lambda: running(kube, namespace, nodes), limit_s=LIMIT_S, every_s=0.2)
    return time.monotonic() - began, sample.cpu_s


def launch(scratch: str, kubeconfig: Path, namespace: str, nodes: int, *more: str) -> Contender:
    """`distlaunch k8s` with that many nodes."""
    env = {**environment(scratch), "KUBECONFIG": str(kubeconfig), "DISTLAUNCH_NAMESPACE": namespace}
    argv = [sys.executable, "-m", "launcher", "k8s", "--image", PINNED, "--nodes", str(nodes), *more, "x.py"]
    return Contender(
        "distlaunch k8s", argv, env, f"{scratch}/project"
    )  # a kubeconfig in the directory of the snapshot is refused


def compare(kube: Kube, scratch: str, nodes: int, rounds: int, *, warm: bool = True) -> None:
    """Time to all pods running, in pairs."""
    times: dict[str, list[tuple[float, float]]] = {"distlaunch k8s": [], "kubectl apply": []}
    for round_number in range(0 if warm else 1, rounds + 1):
        for name, taken in times.items():
            namespace = kube.namespace("bench")
            contender = launch(scratch, kube.kubeconfig, namespace, nodes, "--detach")
            if name != contender.name:
                rendering = launch(scratch, kube.kubeconfig, namespace, nodes, "--render-to", f"{scratch}/rendered")
                rendered = measure(rendering, detached=False)
                assert not rendered.exit_code, rendered.output
                kubectl = kube_programs.find(kube_builds.KUBERNETES, "kubectl")
                apply = ["apply", "--server-side", "-f", f"{scratch}/rendered/run.yaml"]
                argv = [kubectl, "--kubeconfig", str(kube.kubeconfig), *apply]
                contender = Contender(name, argv, environment(scratch), scratch)
            sample = start(kube, contender, namespace, nodes)
            clear(kube, namespace)
            print(f"  round {round_number} {name:<16} {sample[0]:6.2f} s", flush=True)
            if round_number:
                taken.append(sample)
    for name, taken_all in times.items():
        wall, cpu = (statistics.median(column) for column in zip(*taken_all, strict=True))
        print(f"{name:<16} {nodes} pods running after {wall:6.2f} s, CPU of the command {cpu:5.2f} s")
    ours, theirs = ([seconds for seconds, _ in times[name]] for name in ("distlaunch k8s", "kubectl apply"))
    print(f"ratio            {verdict(ratios(ours, theirs), at_most=1.2)}")


def count(kube: Kube, scratch: str, nodes: int) -> None:
    """API calls of a submission and of `status`, and the CPU time of `status`."""
    proxy = Proxy(kube.kubeconfig)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    kubeconfig = Path(scratch, "proxy.kubeconfig")
    kubeconfig.write_text(proxy.kubeconfig())
    for many in (1, nodes):
        namespace = kube.namespace("count")
        proxy.requests.clear()
        contender = launch(scratch, kubeconfig, namespace, many, "--detach", "--output", "json")
        sample = measure(contender, detached=False)
        assert not sample.exit_code, sample.output
        run = json.loads(sample.output.splitlines()[-1])["result"]["run"]  # notes come before
        print(f"submission       {len(proxy.requests)} API calls for {many} nodes")
        wait_until("all pods to run", lambda: running(kube, namespace, many), limit_s=LIMIT_S, every_s=0.5)  # noqa: B023
        proxy.requests.clear()
        argv = [sys.executable, "-m", "launcher", "status", run]
        status = [measure(Contender("status", argv, contender.env, scratch), detached=False) for _ in range(3)]
        lists = sum(request.endswith("/pods") for request in proxy.requests) / len(status)
        cpu = verdict([sample.cpu_s for sample in status], at_most=1.0)
        print(f"status           {many} nodes: {cpu} s of CPU, {lists:g} list of pods,", end=" ")
        print(f"{len(proxy.requests) / len(status):g} API calls in all")
        clear(kube, namespace)
    proxy.shutdown()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3, help="that count, after one that does not")
    parser.add_argument("--only", default="count,compare")
    parser.add_argument("--no-warm-up", action="store_true", help="count the first round, too")
    options = parser.parse_args()
    settings = KubeOptions(nodes=False, simulated_nodes=options.nodes, lost_after_s=600)
    with tempfile.TemporaryDirectory() as scratch, Testbed().up(1, kubernetes=settings) as testbed:
        Path(scratch, "project").mkdir()
        Path(scratch, "project/x.py").write_text("print(1)\n")
        if "count" in options.only:
            count(testbed.kube, scratch, options.nodes)
        if "compare" in options.only:
            compare(testbed.kube, scratch, options.nodes, options.rounds, warm=not options.no_warm_up)


if __name__ == "__main__":
    if not (ROOT / "tests").is_dir():
        sys.exit("benchmarks/k8s.py needs a checkout, with tests/testbed")
    main()
