"""What it saves to bring the environment: imports from a slow directory and from local disk, and copies in a chain.

    python benchmarks/env_ship.py [--rounds 3] [--modules 600] [--milliseconds 0.5] [--hosts 8] [--only imports,chain]

imports   the workers of a run import a package of many modules from a directory whose server takes some time for each
          request: with `--python` there, with `--env-ship` for the first time, and again. Whole command, wall time
chain     an environment to 2 hosts and to more, on links of one rate: wall time, and the bytes on each link; each
          host but the first must have received the environment

Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import ROOT, environment
from testbed.testbed import Testbed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from testbed import Host

TARGET = 2.0
"""The most that many hosts may take, as a ratio to one copy."""

LIMIT_S = 500
_SYSTEM = "/usr/bin/python3"
_NODE = """
import json, sys
from launcher.agent.environment import stage
from launcher.agent.job import Job
job = Job(command=["true"], kind="program", cwd="/", env={}, **json.loads(sys.argv[1]))
stage.NodePart(job, int(sys.argv[2]), job.directory + "/spec.json", lambda *_, **__: None).bring()
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modules", type=int, default=600)
    parser.add_argument("--milliseconds", type=float, default=0.5)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rate", type=int, default=100, help="of each link, in Mbit/s")
    parser.add_argument("--only", default="imports,chain")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        source = made(Path(scratch, "source"), options.modules)
        if "imports" in options.only:
            imports(Path(scratch), source, options.rounds, options.milliseconds)
        if "chain" in options.only:
            (source / "data").write_bytes(os.urandom(options.megabytes * 10**6))
            chain(Path(scratch), source, options)


def made(directory: Path, modules: int) -> Path:
    """A virtual environment with a package of many modules, as torch has about 2,000."""
    python = _SYSTEM if os.path.exists(_SYSTEM) else sys.executable
    subprocess.run([python, "-m", "venv", "--without-pip", directory], check=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    package = packages / "many"
    package.mkdir()
    for number in range(modules):
        (package / f"m{number}.py").write_text(f"def f(x):\n    return x + {number}\n" * 20)
    (package / "__init__.py").write_text("".join(f"from . import m{number}\n" for number in range(modules)))
    subprocess.run([directory / "bin/python", "-m", "compileall", "-q", packages], check=True)
    return directory


# -- imports ----------------------------------------------------------------------------------------------------------


@contextmanager
def slow(source: Path, mount: Path, milliseconds: float) -> Iterator[None]:
    """The directory at another place, from a slow server."""
    mount.mkdir()
    server = Path(__file__).with_name("_slow_directory.py")
    words = [sys.executable, str(server), str(source), str(mount), str(milliseconds)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"mounted\n"
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", mount], check=True)
            process.kill()


def imports(scratch: Path, source: Path, rounds: int, milliseconds: float) -> None:
    """The three ways, one after another in each round."""
    (scratch / "work.py").write_text("import many\nprint(many.m1.f(1))\n")
    env = environment(str(scratch))
    directory, store = scratch / "slow", scratch / "store"
    taken: dict[str, list[float]] = {"from the slow directory": [], "brought": [], "brought before": []}
    with slow(source, directory, milliseconds):
        for _ in range(rounds):
            shutil.rmtree(store, ignore_errors=True)
            shipped = ("--env-ship", str(directory), "--env-ship-dir", str(store))
            ways = (("--python", f"{directory}/bin/python"), shipped, shipped)
            for name, words in zip(taken, ways, strict=True):
                taken[name].append(run(words, scratch, env))
    print(f"imports, {rounds} rounds, {milliseconds} ms for each request; wall s, median (range)")
    for name, walls in taken.items():
        print(f"  {name:24}{statistics.median(walls):8.2f} ({min(walls):.2f}-{max(walls):.2f})")
    for name in ("brought", "brought before"):
        of = [now / before for now, before in zip(taken[name], taken["from the slow directory"], strict=True)]
        print(f"ratio  {name} / from the slow directory  {statistics.median(of):.2f} ({min(of):.2f}-{max(of):.2f})")


def run(words: Sequence[str], scratch: Path, env: Mapping[str, str]) -> float:
    """The time of a whole run."""
    began = time.monotonic()
    argv = [sys.executable, "-m", "launcher", "local", "--nproc-per-node", "2", *words, str(scratch / "work.py")]
    done = subprocess.run(
        argv, env={**env, "PYTHONPATH": str(ROOT)}, cwd=scratch, timeout=LIMIT_S, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return time.monotonic() - began


# -- the chain --------------------------------------------------------------------------------------------------------


def chain(scratch: Path, source: Path, options: argparse.Namespace) -> None:
    """To one other host, and to all others."""
    with Testbed().up(options.hosts) as testbed:
        for host in testbed.hosts:
            host.slow_link(options.rate * 1000)
        ratios, most, size = [], 0, (source / "data").stat().st_size
        for number in range(options.rounds):
            one, few = copy(scratch / f"one{number}", source, testbed.hosts[:2])
            all_, many = copy(scratch / f"all{number}", source, testbed.hosts)
            if min(received for received, _ in few[1:] + many[1:]) < size:
                sys.exit("a host has not received the environment: each has read it from the disk that all share")
            ratios.append(all_ / one)
            most = max(most, *map(max, many))
            print(f"  round {number + 1}: 2 hosts {one:.1f} s, {options.hosts} hosts {all_:.1f} s", flush=True)
    print(
        f"ratio  {options.hosts} hosts / 2 hosts  {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    )
    print(f"bytes on the busiest link / bytes of the environment  {most / size:.2f}")
    if statistics.median(ratios) > TARGET:
        sys.exit(f"more than {TARGET} times one copy")


def copy(directory: Path, source: Path, hosts: Sequence[Host]) -> tuple[float, list[tuple[int, int]]]:
    """Bring the environment to these hosts: the time, and the bytes that each has received and sent."""
    directory.mkdir()
    before, began = carried(hosts), time.monotonic()
    parts = []
    for rank, host in enumerate(hosts):
        about = {"source": str(source), "dir": str(directory / f"disk{rank}"), "quota_bytes": 10**12}
        meet = {"file": str(directory / "rendezvous.json"), "everywhere": True}
        told = {"run": "r", "directory": str(directory), "rendezvous": meet, "key": "k" * 64, "env_ship": about}
        job = json.dumps({**told, "min_nodes": len(hosts), "max_nodes": len(hosts)})
        parts.append(host.popen((sys.executable, "-c", _NODE, job, str(rank)), env={"PYTHONPATH": str(ROOT)}))
    codes = [part.wait(timeout=LIMIT_S) for part in parts]
    took = time.monotonic() - began
    assert not any(codes), codes
    shutil.rmtree(directory)
    both = zip(carried(hosts), before, strict=True)
    return took, [(now[0] - then[0], now[1] - then[1]) for now, then in both]


def carried(hosts: Sequence[Host]) -> list[tuple[int, int]]:
    """The bytes that each host has received and sent since it is there."""
    found = []
    for host in hosts:
        shown = host.run(("ip", "-json", "-stats", "link", "show", "eth0"), check=True).stdout
        about = json.loads(shown)[0]["stats64"]
        found.append((about["rx"]["bytes"], about["tx"]["bytes"]))
    return found


if __name__ == "__main__":
    main()
