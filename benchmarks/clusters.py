"""Many clusters from one place: what it costs beside plain ssh, on two Slurm clusters of the testbed with login nodes.

    python benchmarks/clusters.py [--rounds 5]

    detach    `distlaunch run --on juno --detach` with nothing changed; at most 2 x `ssh juno true` on the open
              connection and 0.5 s, in at most 3 round trips
    files     the same with 20 MB of new files; at most 1.3 x `tar | ssh juno tar` of the same files
    clusters  `distlaunch clusters` of four; at most 1.2 x the slowest of them alone
    race      from node 0's agent to the first line of the script on `--on juno,lab`; at most 1 s more than on one

All of it shares this machine's CPUs. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import environment, ratios, verdict
from testbed import packages
from testbed.login import LoginNode
from testbed.slurm_conf import SlurmOptions
from testbed.testbed import Testbed

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT_S = 300
FILES_BYTES = 20_000_000
SCRIPT = "import time\nprint(time.time(), flush=True)\n"


class Bench:
    """The clusters, and a host that knows them by its settings."""

    def __init__(self, nodes: Sequence[LoginNode], inventory: Path, scratch: Path) -> None:
        self.scratch, self.work = scratch, scratch / "work"
        self.work.mkdir()
        (self.work / "when.py").write_text(SCRIPT)
        self.calls = scratch / "calls"
        client = scratch / "client"
        client.mkdir()
        includes = "".join(f"Match all\nInclude {node.config}\n" for node in nodes)
        (client / "config").write_text(includes)
        program = client / "ssh"
        program.write_text(
            f'#!/bin/sh\ncase "$*" in *"-O "*|"-G "*) ;; *) echo >>{self.calls} ;; esac\n'
            f'case " $* " in *" -F "*) exec {packages.program("ssh")} "$@" ;; esac\n'  # the rack's own settings
            f'exec {packages.program("ssh")} -F {client / "config"} "$@"\n'
        )
        program.chmod(0o755)
        self.env = {**environment(scratch), "HOME": str(scratch)}
        self.env["PATH"] = f"{client}:{self.env['PATH']}"
        text = "[clusters.here]\nbackend = 'local'\n"
        text += f"[clusters.rack]\nbackend = 'ansible'\ninventory = ['{inventory}']\npython = '{sys.executable}'\n"
        for node in nodes:
            text += f"[clusters.{node.name}]\nbackend = 'slurm'\nlogin = '{node.name}'\ngres = 'none'\n"
            text += f"remote_dir = '{scratch / node.name}'\npython = '{sys.executable}'\n"
        Path(self.env["DISTLAUNCH_SYSTEM_CONFIG"]).write_text(text)

    def timed(self, *argv: str, cwd: Path | None = None) -> tuple[float, str]:
        """Seconds, and what it prints on stdout. Raises if it fails."""
        began = time.monotonic()
        done = subprocess.run(
            argv, cwd=cwd or self.work, env=self.env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        took = time.monotonic() - began
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: exit code {done.returncode}: {done.stderr[-2000:]}")
        return took, done.stdout

    def distlaunch(self, *args: str, cwd: Path | None = None) -> tuple[float, str]:
        """Run one command of distlaunch."""
        return self.timed(sys.executable, "-m", "launcher", *args, cwd=cwd)

    def detach(self, rounds: int) -> None:
        """Submit with nothing changed, beside `ssh juno true` on the same connection."""
        ours, floor, trips = [], [], []
        for number in range(rounds + 1):
            self.calls.write_text("")
            took, run = self.distlaunch("run", "--on", "juno", "--detach", "when.py")
            count = len(self.calls.read_text())
            socket = next(path for path in (self.scratch / ".distlaunch/login").iterdir() if path.is_socket())
            plain, _ = self.timed("ssh", "-S", str(socket), "juno", "true")
            self.distlaunch("wait", run.strip())
            if number:
                ours.append(took)
                floor.append(plain)
                trips.append(count)
        show("detach: to 2 x ssh + 0.5 s, ratio", ratios(ours, [2 * each + 0.5 for each in floor]), 1.0)
        print(f"  {middle(ours)} s, ssh true {middle(floor)} s; round trips {max(trips)} (target <= 3)")

    def files(self, rounds: int) -> None:
        """Submit with 20 MB of files that were never sent, beside tar over ssh."""
        ours, theirs = [], []
        for number in range(rounds + 1):
            place = self.scratch / f"files{number}"
            place.mkdir()
            (place / "when.py").write_text(SCRIPT)
            for part in range(20):
                (place / f"data{part}").write_bytes(os.urandom(FILES_BYTES // 20))
            took, run = self.distlaunch("run", "--on", "juno", "--detach", "when.py", cwd=place)
            there = self.scratch / f"plain{number}"
            there.mkdir()
            plain, _ = self.timed("sh", "-c", f"tar -cf - . | ssh juno tar -xf - -C {there}", cwd=place)
            self.distlaunch("wait", run.strip())
            shutil.rmtree(place)
            shutil.rmtree(there)
            if number:
                ours.append(took)
                theirs.append(plain)
        show("files: 20 MB, to tar over ssh, ratio", ratios(ours, theirs), 1.3)
        print(f"  {middle(ours)} s, tar over ssh {middle(theirs)} s")

    def clusters(self, rounds: int) -> None:
        """Ask four clusters, beside each alone."""
        names = ("here", "rack", "juno", "lab")
        ours, slowest = [], []
        for number in range(rounds + 1):
            took, _ = self.distlaunch("clusters", *names)
            alone = max(self.distlaunch("clusters", name)[0] for name in names)
            if number:
                ours.append(took)
                slowest.append(alone)
        show("clusters: four, to the slowest alone, ratio", ratios(ours, slowest), 1.2)
        print(f"  {middle(ours)} s, the slowest {middle(slowest)} s")

    def race(self, rounds: int) -> None:
        """From node 0's agent to the first line of the script, in a race and without one."""
        ours, alone = [], []
        for number in range(rounds + 1):
            first, one = self._to_first_line("juno,lab", "--start", "first"), self._to_first_line("juno")
            if number:
                ours.append(first)
                alone.append(one)
        more = [mine - other for mine, other in zip(ours, alone, strict=True)]
        show("race: from node 0 to the first line, s more than without", more, 1.0)
        print(f"  {middle(ours)} s, without {middle(alone)} s; ratio {middle(ratios(ours, alone))}")

    def _to_first_line(self, on: str, *options: str) -> float:
        _, printed = self.distlaunch("run", "--on", on, *options, "when.py")
        _, text = self.distlaunch("status", "last", "--output", "json")
        began: float = json.loads(text)["result"]["nodes"][0]["started"]
        return float(printed.split()[-1]) - began


def show(what: str, values: Sequence[float], at_most: float) -> None:
    """Print the rounds' median with its range and the target."""
    print(f"{what} {verdict(values, at_most=at_most)}", flush=True)


def middle(values: Sequence[float]) -> str:
    """The median as text."""
    return f"{sorted(values)[len(values) // 2]:.2f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    scratch = Path(tempfile.mkdtemp(prefix="dl-"))
    nodes: list[LoginNode] = []
    with Testbed().up(3, slurm=SlurmOptions(), ssh=True) as one, Testbed().up(2, slurm=SlurmOptions()) as two:
        try:
            for name, bed in (("juno", one), ("lab", two)):
                nodes.append(LoginNode.of(name, bed.slurm, scratch / f"node-{name}"))
            scratch.chmod(0o755)
            bench = Bench(nodes, one.ssh.inventory, scratch)
            for measure in (bench.detach, bench.files, bench.clusters, bench.race):
                measure(rounds)
            for node in nodes:
                bench.distlaunch("login", node.name, "--close")
        finally:
            for node in nodes:
                node.down()
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
