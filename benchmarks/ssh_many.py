"""The launcher's own CPU time for a start over SSH on very many hosts, which are simulated.

    python benchmarks/ssh_many.py [--hosts 64,256,500] [--rounds 1] [--lost 1]

`ssh` is a stand-in on PATH that answers as a host's agent would; no agent is started. Counted is the CPU time of
`distlaunch ansible --detach` with Ansible and all that it forks, as seen 20 times a second, without that of the
stand-ins. The first `--lost` hosts cannot be reached, and spare hosts take their places.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import environment

TARGET_S = 15.0
"""At 500 hosts."""

STAND_IN = """\
#!{python} -SE
import json, os, sys, time
words = sys.argv[1:]
host, mark = words[-2], "distlaunch-host-1 "
lost, used = os.environ["BENCH_LOST"].split(","), os.environ["BENCH_USED"]

def answer(request):
    call, where = request.get("call"), "/run/" + host
    if call == "preflight":
        return {{
            "time": time.time(), "hostname": host, "python": "/usr/bin/python3", "python_version": "3.11.7", "gpus": 0,
            "torch": "2.9.0", "framework": "torch 2.9.0", "without": "", "cpus": 64, "dir": "/run", "directory": where,
            "free_bytes": 1 << 40, "agent_path": where + "/agent.pyz", "has_files": False, "has_cwd": True,
            "addresses": ["10.0.0.1"], "machine": [host, 1], "disk": [host, 1], "supervisor": "", "replaced": None,
            "user_processes_end": False, "mounts": [],
        }}
    return {{
        "lease": {{"leased": {{"gpus": None}}, "held": [], "ahead": []}},
        "look": {{"free": True, "held": [], "ahead": []}},
        "files": {{"unpacked": True}},
        "reach": {{"tried": {{address: True for address in request.get("candidates", ())}}}},
        "ended": {{"ended": ""}},
        "start": {{
            "agent": {{"pid": 1, "start_ticks": 1, "host": host, "stream_from": 0}}, "directory": where, "work": where,
            "addresses": ["10.0.0.1"], "port": 29500, "notes": [],
        }},
    }}.get(call, {{}})

if host in lost:
    print("ssh: connect to host " + host + " port 22: No route to host", file=sys.stderr)
    code = 255
elif mark.strip() in words[-1]:
    code = 0
    for line in sys.stdin.buffer:
        request = json.loads(line)
        sys.stdin.buffer.read(request.get("bytes", 0))
        print(mark + json.dumps(answer(request)), flush=True)
else:
    code = 0
fd = os.open(used, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
os.write(fd, b"x\\n")
os._exit(code)
"""


class Started(NamedTuple):
    """One start."""

    wall_s: float
    cpu_s: float
    connections: int


def start(scratch: Path, hosts: int, lost: int) -> Started:
    """Start a run on that many hosts, of more that are in the inventory."""
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        there = Path(directory)
        names = [f"n{number:04}" for number in range(hosts + lost)]
        (there / "hosts.ini").write_text("\n".join(names) + "\n")
        (there / "x.py").write_text("print(1)\n")
        stand_in = there / "bin/ssh"
        stand_in.parent.mkdir()
        stand_in.write_text(STAND_IN.format(python=sys.executable))
        stand_in.chmod(0o755)
        env = {**environment(directory), "BENCH_USED": str(there / "used"), "BENCH_LOST": ",".join(names[:lost])}
        env["PATH"] = f"{stand_in.parent}:{env['PATH']}"
        argv = [sys.executable, "-m", "launcher", "ansible", "--detach", "-i", "hosts.ini", "--output", "json"]
        argv += ["--nodes", str(hosts), "--spares", str(lost), "--nproc-per-node", "1", "x.py"]
        began, used = time.monotonic(), Used(directory)
        with (there / "out").open("wb") as out:
            process = subprocess.Popen(argv, cwd=there, env=env, stdout=out, stderr=subprocess.STDOUT)
            while process.poll() is None:
                used.look()
                time.sleep(0.05)
        wall_s = time.monotonic() - began
        if process.returncode:
            raise SystemExit(f"exit code {process.returncode}: {(there / 'out').read_text()[-4000:]}")
        plan = json.loads(next(there.glob("runs/*/run.json")).read_text())
        if len(plan["handle"]["nodes"]) != hosts or set(plan["handle"]["hosts"]) & {*names[:lost]}:
            raise SystemExit("other hosts were started")
        return Started(wall_s, used.cpu_s, len((there / "used").read_text().splitlines()))


class Used:
    """The CPU time of all processes with this directory in their environment, but for the stand-ins of ssh."""

    def __init__(self, directory: str) -> None:
        self._mark = f"BENCH_USED={directory}/".encode()
        self._mine: dict[str, bool] = {}
        self._s: dict[str, float] = {}

    @property
    def cpu_s(self) -> float:
        """As far as it was seen."""
        return sum(self._s.values())

    def look(self) -> None:
        """Look at all processes."""
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                stat = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                key = f"{entry} {stat[19]}"
                if not self._mine.get(key):
                    words = Path(f"/proc/{entry}/cmdline").read_bytes()
                    self._mine[key] = self._mark in Path(f"/proc/{entry}/environ").read_bytes()
                    if b"/bin/ssh" in words:
                        self._mine[key] = False
                if self._mine[key]:
                    self._s[key] = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="64,256,500")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--lost", type=int, default=1)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    print("| hosts | wall s | CPU s of the launcher | ratio to the target | ms per host | connections |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as scratch:
        for hosts in map(int, options.hosts.split(",")):
            taken = [start(Path(scratch), hosts, options.lost) for _ in range(options.rounds)]
            cpu_s = statistics.median(each.cpu_s for each in taken)
            print(
                f"| {hosts} | {statistics.median(each.wall_s for each in taken):.1f} | {cpu_s:.1f} "
                f"| {cpu_s / TARGET_S:.2f} | {1000 * cpu_s / hosts:.1f} | {taken[-1].connections} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
