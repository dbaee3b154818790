"""A real Slurm in the hosts of a testbed: its daemons, its commands, and faults to inject."""

from __future__ import annotations

import os
import signal
import stat
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from testbed import accounting, processes, slurm_conf
from testbed.errors import TestbedError, WaitError
from testbed.packages import PATH
from testbed.slurm_conf import Files, SlurmOptions
from testbed.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from testbed.hosts import Host

LIMIT_S = 120
"""Limit for waits and for commands, in seconds."""

_SHOWN_LINES = 15
_FOR_GOOD = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE")

T = TypeVar("T")


@dataclass
class Slurm:
    """One cluster. `env()` is the environment for its commands on this machine, its submit host."""

    options: SlurmOptions
    hosts: tuple[Host, ...]
    controller: Host
    directory: Path
    state: Path
    wiring: tuple[tuple[str, ...], ...] = ()
    """The hosts below each leaf switch."""

    shares: Slurm | None = None
    """The cluster whose slurmdbd and munged are also this one's."""

    _daemons: dict[str, subprocess.Popen[Any]] = field(default_factory=dict, repr=False)

    @property
    def files(self) -> Files:
        """Paths of its files."""
        return Files(self.directory, self.state)

    def env(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment for sbatch, srun, squeue, ... on this machine, without variables of another Slurm."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH", "SALLOC"))}
        return {**kept, "SLURM_CONF": str(self.files.conf), "PATH": f"{kept.get('PATH', '')}:{PATH}", **(more or {})}

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = LIMIT_S,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a Slurm command on this machine; a failure is a `TestbedError` unless `check` is off."""
        return processes.run(argv, timeout_s=timeout_s, env=self.env(env), check=check, cwd=cwd, stdin=stdin)

    # Its daemons

    def start(self) -> None:
        """Write the configuration, start all daemons, and wait until every node is idle."""
        self.wiring = slurm_conf.wiring(self.options, self.hosts)
        self._write()
        if self.shares is None:
            self._start_munged()
        if self.options.accounting:
            accounting.start(self.controller, self.files)
        self.start_controller()
        for host in self.hosts:
            self.start_slurmd(host)
        self.wait_idle()

    def start_controller(self) -> None:
        """Start slurmctld, and wait until it answers."""
        self._start("slurmctld", self.controller, ("slurmctld", "-D"))
        self._wait(
            "slurmctld to answer",
            lambda: self.run(("scontrol", "ping"), check=False).returncode == 0 and self._running("slurmctld"),
        )

    def stop_controller(self, number: int = signal.SIGKILL) -> None:
        """Stop slurmctld: SIGKILL is a crash, SIGTERM a clean shutdown."""
        self._stop("slurmctld", number)

    def restart_controller(self, number: int = signal.SIGKILL) -> None:
        """Stop slurmctld and start it again: running jobs continue meanwhile."""
        self.stop_controller(number)
        self.start_controller()

    def wait_saved(self) -> None:
        """Wait until slurmctld has saved the state of its jobs: a crash loses what it learns after that."""
        saved, now = self.directory / "state/job_state", time.time()
        self.run(("scancel", self.sbatch("#!/bin/sh\n", "--hold")))  # a change to save
        self._wait("slurmctld to save its state", lambda: saved.exists() and saved.stat().st_mtime > now)

    def start_slurmd(self, host: Host) -> None:
        """Start the slurmd of a host; `wait_state` waits until the node is usable."""
        (self.directory / "spool" / host.name).mkdir(parents=True, exist_ok=True)
        self._start(f"slurmd-{host.name}", host, ("slurmd", "-D", "-N", host.name))

    def stop_slurmd(self, host: Host, number: int = signal.SIGKILL) -> None:
        """Stop the slurmd of a host; its jobs keep running, and after `dead_after_s` the node is DOWN."""
        self._stop(f"slurmd-{host.name}", number)

    def configure(self, **values: str) -> None:
        """Change lines of slurm.conf in the running cluster; those that need a restart do not take effect."""
        self.options = replace(self.options, conf={**self.options.conf, **values})
        self._write()
        self.run(("scontrol", "reconfigure"))

    def wire(self, *leaves: Sequence[str]) -> None:
        """Put each group of hosts, by name, below its own leaf switch; the cluster must have started with switches."""
        self.wiring = tuple(map(tuple, leaves))
        self._write()
        self.run(("scontrol", "reconfigure"))
        words = [f"SwitchName={name} " for name in slurm_conf.leaves(self.wiring)]

        def known() -> bool:
            told = self.run(("scontrol", "show", "topology")).stdout.splitlines()
            hosts = [
                {*self.expand(line.partition(" Nodes=")[2])} for word in words for line in told if line.startswith(word)
            ]
            return hosts == list(map(set, self.wiring))

        self._wait(f"the topology {self.wiring}", known)

    def expand(self, hostlist: str) -> list[str]:
        """The hosts of a list like `n[1-3]`."""
        return self.run(("scontrol", "show", "hostnames", hostlist)).stdout.split()

    # Its nodes

    def node_state(self, host: Host) -> str:
        """A node's state in Slurm's terms: `IDLE`, `ALLOCATED`, `DOWN`, `IDLE+DRAIN`, `DOWN+NOT_RESPONDING`."""
        told = self.run(("scontrol", "--oneliner", "show", "node", host.name)).stdout.split()
        return next((word.removeprefix("State=") for word in told if word.startswith("State=")), "UNKNOWN")

    def wait_state(self, host: Host, state: str) -> None:
        """Wait until a node has a state among its flags, such as `DOWN` or `DRAIN`; `IDLE` must be its only one."""

        def reached() -> str | None:
            now = self.node_state(host)
            return now if now == state or (state != "IDLE" and state in now.split("+")) else None

        self._wait(f"{host.name} to be {state}", reached)

    def wait_idle(self) -> None:
        """Wait until every node responds and is idle."""
        for host in self.hosts:
            self.wait_state(host, "IDLE")

    def drain(self, host: Host, reason: str = "testbed") -> None:
        """Give a node no more jobs; the one on it continues."""
        self.run(("scontrol", "update", f"NodeName={host.name}", "State=DRAIN", f"Reason={reason}"))

    def resume(self, host: Host) -> None:
        """Undo `drain`, or bring back a node that is DOWN. Returns when jobs run there, which is later than IDLE."""
        self.run(("scontrol", "update", f"NodeName={host.name}", "State=RESUME"))
        self.run(("srun", "--quiet", f"--nodelist={host.name}", "--nodes=1", "true"))

    # Its jobs

    def sbatch(self, script: str, *options: str, timeout_s: float = LIMIT_S, cwd: str | None = None) -> str:
        """Submit a batch script, and return the job's number."""
        done = self.run(
            ("sbatch", "--parsable", *options), stdin=script, timeout_s=timeout_s, cwd=cwd or str(self.directory)
        )
        return done.stdout.strip().partition(";")[0]

    def job(self, number: str) -> dict[str, str]:
        """The fields of `scontrol show job`; empty if slurmctld has forgotten the job."""
        done = self.run(("scontrol", "--oneliner", "show", "job", number), check=False)
        pairs = (word.partition("=") for word in done.stdout.split())
        return {key: value for key, _, value in pairs} if done.returncode == 0 else {}

    def wait_job(self, number: str, *states: str) -> str:
        """Wait until a job is in one of these states; if it ends in another, fail at once."""
        wanted = f"job {number} to be {' or '.join(states)}"

        def reached() -> str:
            state = self.job(number).get("JobState", "")
            if state in _FOR_GOOD and state not in states:
                raise WaitError(f"waited for {wanted}, and it is {state}\n{self.story()}")
            return state if state in states else ""

        return self._wait(wanted, reached)

    def forget(self, *numbers: str) -> None:
        """Make slurmctld forget these and all other ended jobs, which it does MinJobAge after their end."""
        age = self.options.conf.get("MinJobAge", "300")
        self.configure(MinJobAge="2")
        self.restart_controller(
            signal.SIGTERM
        )  # started with such a short age, it looks every 10 s, else once a minute
        try:
            self._wait(f"Slurm to forget {numbers}", lambda: not any(self.job(number) for number in numbers))
        finally:
            self.configure(MinJobAge=age)

    def cancel_all(self) -> None:
        """Cancel every job, and wait until none is left: for use between two tests."""

        def numbers() -> list[str]:
            return self.run(("squeue", "--noheader", "--format=%A")).stdout.split()

        if before := numbers():
            self.run(("scancel", "--quiet", *before), check=False)  # one may have ended meanwhile
        self._wait("no job to be left", lambda: not numbers())

    def story(self) -> str:
        """The cluster's current state, for the error of a failed wait."""
        commands = (("squeue", "--states=all"), ("sinfo", "--Node", "--long"))
        told = [f"$ {' '.join(argv)}\n{(done := self.run(argv, check=False)).stdout}{done.stderr}" for argv in commands]
        for path in sorted(self.files.logs.glob("slurm*.log")):
            lines = path.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
            told.append("\n".join((f"the last lines of {path}:", *lines)))
        return "\n".join(told)

    # Internals

    def _wait(self, what: str, condition: Callable[[], T], *, limit_s: float = LIMIT_S, every_s: float = 0.1) -> T:
        """Wait until a condition is true; the error includes the cluster's `story`."""
        try:
            return wait_until(what, condition, limit_s=limit_s, every_s=every_s)
        except WaitError as error:
            raise WaitError(f"{error}\n{self.story()}" if "\n" not in str(error) else str(error)) from None

    def _write(self) -> None:
        """Write all configuration files."""
        files, options = self.files, self.options
        for name in ("logs", "state", "spool", "munge", "gpus"):
            (self.directory / name).mkdir(exist_ok=True)
        for index in range(options.gpus_per_host):
            if not files.gpu(index).exists():
                os.mknod(
                    files.gpu(index), stat.S_IFCHR | 0o666, os.makedev(1, 3)
                )  # slurmd requires a device; this is /dev/null
        written = {"slurm.conf": slurm_conf.slurm_conf(options, self.hosts, self.controller, files)}
        if options.gpus_per_host:
            written["gres.conf"] = slurm_conf.gres_conf(options, self.hosts, files)
        if options.switches:
            written["topology.conf"] = slurm_conf.topology_conf(self.wiring)
        for name, text in written.items():
            new = self.directory / f"{name}.new"
            new.write_text(text)
            new.replace(self.directory / name)

    def _start_munged(self) -> None:
        """Start the cluster's own munged, with its own key and socket, independent of this machine's."""
        files = self.files
        processes.run(
            ("mungekey", "--create", f"--keyfile={files.munge_key}"), timeout_s=LIMIT_S, env=self.env(), check=True
        )
        own = files.munge_key.parent
        argv = (
            "munged", "--foreground", "--force", f"--socket={files.munge_socket}", f"--key-file={files.munge_key}",
            f"--pid-file={own}/pid", f"--seed-file={own}/seed", f"--log-file={own}/log",
            "--origin=submit",  # the host of origin that slurmctld records for jobs
        )  # fmt: skip
        self._start("munged", self.controller, argv)
        wait_until("munged's socket to be there", files.munge_socket.exists, limit_s=LIMIT_S, every_s=0.02)

    def _start(self, name: str, host: Host, argv: tuple[str, ...]) -> None:
        """Start a daemon, which writes to its log."""
        if self._running(name):
            raise TestbedError(f"{name} is already running")
        self._daemons[name] = host.daemon(
            argv, self.files.logs / f"{name}.log", env={"SLURM_CONF": str(self.files.conf)}
        )

    def _running(self, name: str) -> bool:
        """Whether this daemon runs."""
        return name in self._daemons and self._daemons[name].poll() is None

    def _stop(self, name: str, number: int) -> None:
        """Stop a daemon and wait for it."""
        daemon = self._daemons[name]
        daemon.send_signal(number)
        daemon.wait(timeout=LIMIT_S)  # slurmctld alone may take half a minute to stop its threads
