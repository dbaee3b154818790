"""From the command to the last agent started, over real SSH to hosts of the testbed: distlaunch and others.

    python benchmarks/ssh.py [--hosts 4,32,64] [--rounds 3] [--only floor,pythons,distlaunch,again,playbook]
                             [--own-disks] [--torchrunx PYTHON]

    floor       one round of plain `ssh host true`, all at once: the handshakes, which every launcher needs
    pythons     the same with two Pythons on each host, one started by the other, which only import some modules of
                the standard library: the least for a launcher in Python, whose agent outlives what imports torch
    distlaunch  `distlaunch ansible --detach`: preflight, files, agents; on new connections
    again       the same once more, with files in place and connections open
    playbook    an ordinary playbook that does as much with modules: facts, directories, copies, a detached command
    torchrunx   until its agents have answered; only with --torchrunx, a Python that has it (uv pip install torchrunx)

All hosts share this machine's CPUs, so the hosts' Python has a torch whose import only waits: the start of the agents
is measured, not 64 imports of torch on one machine. The hosts share a disk, as most clusters do, so the agent and the
files come to one of them; with `--own-disks`, to each. Only torchrunx's agents need the real torch, to answer at all.
Bytes are those received over the hosts' links. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _free_memory
from benchmarks._measure import ROOT, environment, ratios, verdict
from launcher.agent.network import routes
from launcher.agent.system import cgroup
from testbed.testbed import Testbed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from testbed.hosts import Host
    from testbed.ssh import SshHosts

NAMES = ("floor", "pythons", "distlaunch", "again", "playbook", "torchrunx")
TARGETS = {"distlaunch": 1.6, "again": 1.1}
"""Highest ratios to the floor's time at 64 hosts."""

LIMIT_S = 300
PYTHONS = """
import contextlib, ctypes, json, select, signal, socket, subprocess, sys, threading
if sys.argv[1:]:
    subprocess.run([sys.argv[1], "-c", sys.argv[2]], check=True)
"""

ORDINARY = """
- hosts: nodes
  tasks:
    - ansible.builtin.file: {path: "{{ directory }}/{{ inventory_hostname }}", state: directory, mode: "0700"}
    - ansible.builtin.copy: {src: "{{ agent }}", dest: "{{ directory }}/{{ inventory_hostname }}/agent.pyz", \
mode: "0600"}
    - ansible.builtin.unarchive: {src: "{{ files }}", dest: "{{ directory }}/{{ inventory_hostname }}"}
    - ansible.builtin.shell: nohup sleep 1 </dev/null >/dev/null 2>&1 &
"""

TORCHRUNX = """
import multiprocessing, os, socket, sys
socket.getfqdn = lambda name="": name or socket.gethostname()  # by which the hosts know this machine
from torchrunx import launcher
group = launcher.LauncherAgentGroup
answered = group.sync_payloads

def and_end(*args, **keywords):
    answered(*args, **keywords)
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(0)

group.sync_payloads = and_end
launcher.Launcher(hostnames=sys.argv[2:], workers_per_host=1, ssh_config_file=sys.argv[1], backend=None).run(print)
"""


class Bench:
    """One testbed, and how each contender is run on it."""

    def __init__(
        self, ssh: SshHosts, scratch: Path, *, torchrunx: str = "", checkout: Path = ROOT, own_disks: bool = False
    ) -> None:
        """Use distlaunch's sources in `checkout`. `own_disks`: hosts do not share the remote directory."""
        self._own_disks = own_disks
        self.ssh, self.scratch, self.round, self.torchrunx_python, self.checkout = ssh, scratch, 0, torchrunx, checkout
        self.env: dict[str, str] = {}
        torch = scratch / "empty"
        (torch / "torch").mkdir(parents=True)
        (torch / "torch/__init__.py").write_text("import time\ntime.sleep(1000)\n")
        (torch / "torch/version.py").write_text('__version__ = "0"\n')
        self.python = scratch / "python"
        self.python.write_text(f'#!/bin/sh\nPYTHONPATH={torch} exec {sys.executable} "$@"\n')
        self.python.chmod(0o755)
        self.work = scratch / "work"
        self.work.mkdir()
        (self.work / "train.py").write_text("import torch\n")
        (self.work / "data").write_bytes(os.urandom(1_000_000))

    def new_round(self) -> None:
        """Use new connections, and new directories on the hosts."""
        self.round += 1
        sockets = self.scratch / f"s{self.round}"
        sockets.mkdir(mode=0o700)
        more = {"XDG_RUNTIME_DIR": str(sockets), "ANSIBLE_SSH_CONTROL_PATH_DIR": str(sockets), "ANSIBLE_NOCOLOR": "1"}
        self.env = {**environment(self.scratch), **more, "PYTHONPATH": str(self.checkout)}
        remote = self.scratch / f"remote{self.round}"
        remote.mkdir(mode=0o700)
        self._disks = [remote]
        if self._own_disks:
            for host in self.ssh.hosts:
                host.private_directory(remote)
            self._disks = [host.path(remote) for host in self.ssh.hosts]

    def measure(self, name: str) -> tuple[float, int]:
        """Seconds and bytes of one contender."""
        before = received(self.ssh.hosts)
        began = time.monotonic()
        getattr(self, name)()
        took = time.monotonic() - began
        size = received(self.ssh.hosts) - before
        left = {host: [one for one in host.processes() if "sshd" not in one.command()] for host in self.ssh.hosts}
        if name in ("distlaunch", "again") and not all(left.values()):
            raise RuntimeError(f"{name}: an agent has not waited for torch: a whole run would be measured")
        for process in chain(*left.values()):  # they would wait forever, and torchrunx's workers import it
            process.send(signal.SIGKILL)
        self._forget_agents()
        return took, size

    def _forget_agents(self) -> None:
        """Remove what killed agents have left in their hosts' memory: the next ones would look at it."""
        for path in chain.from_iterable(disk.glob("runs/*/nodes/*/agent.json") for disk in self._disks):
            with suppress(ValueError):  # it was about to be written
                agent = json.loads(path.read_text())
                if agent["cgroup"]:
                    cgroup.remove(agent["cgroup"])
                for host in self.ssh.hosts:  # its name is that of one process, and it is on one of them
                    shutil.rmtree(host.path(Path(agent["scratch"])), ignore_errors=True)
            path.unlink()

    def floor(self, *command: str) -> None:
        """Run plain ssh to all hosts."""
        options = ("-o", "ControlMaster=no", "-o", "ControlPath=none")
        argvs = [("ssh", *options, *self.ssh.argv(host, *(command or ("true",)))[1:]) for host in self.ssh.hosts]
        started = [subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) for argv in argvs]
        failed = [process.wait(LIMIT_S) for process in started]
        if any(failed):
            raise RuntimeError(f"{sum(map(bool, failed))} of {len(failed)} connections failed")

    def pythons(self) -> None:
        """Run two Pythons on each host, by plain ssh."""
        python = str(self.python)
        self.floor(python, "-c", PYTHONS, python, PYTHONS)

    def distlaunch(self) -> None:
        """Run `distlaunch ansible --detach`; everything is new the first time in a round."""
        remote = self.scratch / f"remote{self.round}"
        argv = (sys.executable, "-m", "launcher", "ansible", "--detach", "--inventory", str(self.ssh.inventory))
        self._run((*argv, "--python", str(self.python), "--remote-dir", str(remote), "train.py"))

    again = distlaunch

    def playbook(self) -> None:
        """Run an ordinary playbook."""
        path = self.scratch / "ordinary.yml"
        path.write_text(ORDINARY)
        from launcher.payload import agent_archive, snapshot

        agent, files = self.scratch / "agent.pyz", self.scratch / "files.tar.gz"
        agent.write_bytes(agent_archive.packed())
        snapshot.collect(self.work, limit_bytes=10**9).write_tar(files, compress=True)
        directory = self.scratch / f"ordinary{self.round}"
        directory.mkdir()
        variables = f"directory={directory} agent={agent} files={files} ansible_python_interpreter={sys.executable}"
        env = {"ANSIBLE_FORKS": str(len(self.ssh.hosts)), "ANSIBLE_PIPELINING": "1"}
        playbook = str(Path(sys.executable).parent / "ansible-playbook")
        self._run((playbook, "--inventory", str(self.ssh.inventory), "--extra-vars", variables, str(path)), env)

    def torchrunx(self) -> None:
        """Run torchrunx's launcher until all agents have answered."""
        script = self.scratch / "with_torchrunx.py"
        script.write_text(TORCHRUNX)
        hosts = [host.address for host in self.ssh.hosts]
        towards = {
            "GLOO_SOCKET_IFNAME": routes.towards(hosts[0])[0] or ""
        }  # this machine's name would lead gloo to another interface
        self._run((self.torchrunx_python, str(script), str(self.ssh.config), *hosts), towards)

    def _run(self, argv: Sequence[str], more: Mapping[str, str] | None = None) -> None:
        env = {**self.env, **(more or {})}
        with subprocess.Popen(
            argv, cwd=self.work, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                said, _ = process.communicate(timeout=LIMIT_S)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # Ansible's workers, too
                raise
        if process.returncode:
            raise RuntimeError(f"{' '.join(argv)}: exit code {process.returncode}\n{said[-4000:]}")


def received(hosts: Sequence[Host]) -> int:
    """Bytes received over the hosts' links."""
    total = 0
    for host in hosts:
        lines = Path(f"/proc/{host.anchor.pid}/net/dev").read_text(encoding="ascii").splitlines()
        total += next(int(line.split()[1]) for line in lines if line.strip().startswith("eth0:"))
    return total


def show(hosts: int, samples: Mapping[str, Sequence[tuple[float, int]]]) -> str:
    """Medians, and ratios of the same round."""
    lines = [f"{hosts} hosts, {len(next(iter(samples.values())))} rounds"]
    for name, taken in samples.items():
        seconds, size = statistics.median(s for s, _ in taken), statistics.median(b for _, b in taken)
        lines.append(f"  {name:<10}  {seconds:7.2f} s   {size / hosts / 1000:9.1f} KB per host")
    for base in ("floor", "playbook", "torchrunx"):
        for name in ("pythons", "distlaunch", "again") if base == "floor" else ("distlaunch", "again"):
            if base in samples and name in samples:
                found = ratios([seconds for seconds, _ in samples[name]], [seconds for seconds, _ in samples[base]])
                target = TARGETS.get(name) if (base, hosts) == ("floor", 64) else None
                lines.append(f"  {name} / {base}: {verdict(found, at_most=target)}")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="4,32,64", help="numbers of hosts, with commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(NAMES), help="which, with commas")
    parser.add_argument("--own-disks", action="store_true", help="hosts do not share the remote directory")
    parser.add_argument("--torchrunx", default="", metavar="PYTHON", help="an interpreter that has torchrunx")
    options = parser.parse_args()
    chosen = [name for name in NAMES if name in options.only.split(",") and (name != "torchrunx" or options.torchrunx)]
    _free_memory.keep(options.rounds)
    for count in map(int, options.hosts.split(",")):
        samples: dict[str, list[tuple[float, int]]] = {name: [] for name in chosen}
        # In /tmp: paths of sockets must be short.
        with (
            tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as scratch,
            Testbed().up(count, ssh=True) as testbed,
        ):
            bench = Bench(testbed.ssh, Path(scratch), torchrunx=options.torchrunx, own_disks=options.own_disks)
            for _ in range(options.rounds):
                bench.new_round()
                for name in chosen:
                    samples[name].append(bench.measure(name))
                    print(f"{count} hosts, {name}: {samples[name][-1][0]:.2f} s", file=sys.stderr, flush=True)
            print(show(count, samples), flush=True)


if __name__ == "__main__":
    main()
