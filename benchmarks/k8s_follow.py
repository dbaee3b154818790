"""What it costs to follow the logs of many pods: threads, memory and CPU time of the command that follows.

    python benchmarks/k8s_follow.py [--pods 500] [--lines 150]

The API server is tests/k8s/many_pods.py: each pod prints ten lines a second, and each connection breaks once.
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
from tests.k8s.many_pods import RUN, line


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
            finally:
                server.kill()


def follow(scratch: str, kubeconfig: str, pods: int, lines: int) -> None:
    """Follow the run to its end, and look at the command meanwhile."""
    env = {**os.environ, **environment(scratch), "KUBECONFIG": kubeconfig}
    argv = [sys.executable, "-m", "distlaunch", "logs", "--follow", RUN, "--on", "k8s"]
    threads = memory_kb = 0
    with open(f"{scratch}/printed", "wb") as printed, subprocess.Popen(argv, env=env, stdout=printed) as command:
        while command.poll() is None:
            status = Path(f"/proc/{command.pid}/status").read_text(encoding="utf-8")
            if found := re.search(r"VmHWM:\s+(\d+) kB", status):
                memory_kb = int(found[1])
                threads = max(threads, int(re.findall(r"Threads:\s+(\d+)", status)[0]))
            time.sleep(0.1)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    whole = sorted(Path(scratch, "printed").read_text(encoding="utf-8").splitlines())
    wanted = sorted(f"[{node}:{node}] {line(node, number)}" for node in range(pods) for number in range(lines))
    result = {
        "pods": pods,
        "threads": threads,
        "rss_mb": round(memory_kb * 1024 / 1e6, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "lines": len(whole),
        "whole": whole == wanted,
    }
    print(json.dumps(result))
    print(f"threads to pods, ratio {threads / pods:.3f}")


if __name__ == "__main__":
    if not (ROOT / "tests").is_dir():
        sys.exit("benchmarks/k8s_follow.py needs a checkout, with tests")
    main()
