"""What it costs to follow many pods: threads, connections, memory and CPU time of the command; and of `status`.

    python benchmarks/k8s_follow.py [--pods 500] [--lines 150]

The API server is tests/k8s/many_pods.py: each pod prints ten lines a second, and each connection breaks once. Of more
than 512 pods, only the logs are read that are needed: as all is well, that of node 0.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import ROOT, environment
from launcher.backends.kubernetes.demand import MOST_FOLLOWED
from tests.k8s.many_pods import RUN, asked, line


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=500)
    parser.add_argument("--lines", type=int, default=150)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory() as scratch:
        argv = [sys.executable, "-m", "tests.k8s.many_pods", scratch, str(options.pods), str(options.lines)]
        with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            kubeconfig = server.stdout.readline().strip()
            try:
                follow(scratch, kubeconfig, options.pods, options.lines)
                status(scratch, kubeconfig)
            finally:
                server.kill()


def follow(scratch: str, kubeconfig: str, pods: int, lines: int) -> None:
    """Follow the run to its end, and look at the command meanwhile."""
    env = {**os.environ, **environment(scratch), "KUBECONFIG": kubeconfig}
    argv = [sys.executable, "-m", "distlaunch", "logs", "--follow", RUN, "--on", "k8s"]
    with open(f"{scratch}/printed", "wb") as printed, subprocess.Popen(argv, env=env, stdout=printed) as command:
        found = watched(command)
    whole = sorted(Path(scratch, "printed").read_text(encoding="utf-8").splitlines())
    shown = range(pods if pods <= MOST_FOLLOWED else 1)
    wanted = sorted(f"[{node}:{node}] {line(node, number)}" for node in shown for number in range(lines))
    told = {**found, **asked(kubeconfig), "lines": len(whole), "whole": whole == wanted}
    print(json.dumps({"pods": pods, **told}))
    print(f"threads to pods, ratio {found['threads'] / pods:.3f}")


def status(scratch: str, kubeconfig: str) -> None:
    """Ask how the run is in another directory. Few pods' logs are all there then, and nothing has to be asked."""
    there = Path(scratch, "elsewhere")
    there.mkdir()
    env = {**os.environ, **environment(str(there)), "KUBECONFIG": kubeconfig}
    adopts = [sys.executable, "-m", "distlaunch", "logs", "--rank", "0", RUN, "--on", "k8s"]
    subprocess.run(adopts, env=env, stdout=subprocess.DEVNULL, check=True, timeout=120)
    (before, began), argv = (asked(kubeconfig), time.monotonic()), [sys.executable, "-m", "distlaunch", "status", RUN]
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL) as command:
        found = watched(command)
    took = round(time.monotonic() - began, 1)
    more = {key: count - before[key] for key, count in asked(kubeconfig).items() if key != "logs_at_once"}
    print(json.dumps({"status_s": took, **found, **more}))


def watched(command: subprocess.Popen[bytes]) -> dict[str, float]:
    """Threads, memory and CPU time of a command until it ends."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    threads = memory_kb = 0
    while command.poll() is None:
        about = Path(f"/proc/{command.pid}/status").read_text(encoding="utf-8")
        if found := re.search(r"VmHWM:\s+(\d+) kB", about):
            memory_kb = int(found[1])
            threads = max(threads, int(re.findall(r"Threads:\s+(\d+)", about)[0]))
        time.sleep(0.1)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return {"threads": threads, "rss_mb": round(memory_kb * 1024 / 1e6, 1), "cpu_s": round(cpu_s, 1)}


if __name__ == "__main__":
    if not (ROOT / "tests").is_dir():
        sys.exit("benchmarks/k8s_follow.py needs a checkout, with tests")
    main()
