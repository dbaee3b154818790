"""A host of the testbed: a network namespace with a name, and its own mount and UTS namespaces."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed import processes
from testbed.errors import TestbedError
from testbed.packages import PATH
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from testbed.processes import Process

LINK = "eth0"
"""The name of a host's only link."""


@dataclass(eq=False)
class Host:
    """One host of the testbed; its file system is this machine's, unless `private_directory` hides a part of it."""

    name: str
    address: str
    netns: str
    """The name of its network namespace, as `ip netns` shows it."""

    switch: str
    """The network namespace of the bridge; the far end of the host's link has the host's name there."""

    anchor: Process
    """The process that keeps its namespaces alive while nothing else runs in them."""

    _anchor_popen: subprocess.Popen[bytes] = field(repr=False)
    _started: list[subprocess.Popen[Any]] = field(default_factory=list, repr=False)

    def argv(self, *argv: str, cwd: str | None = None) -> tuple[str, ...]:
        """The command on this machine that runs `argv` in this host."""
        enter = ("nsenter", f"--target={self.anchor.pid}", "--net", "--uts", "--mount", f"--wdns={cwd or os.getcwd()}")
        return (*enter, "--", *argv)

    def env(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of programs in the host: this machine's, with the daemons' directories on PATH."""
        return {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{PATH}", "HOSTNAME": self.name, **(more or {})}

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 120,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str = "",
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in this host until it exits, and capture its output.

        Args:
            env: variables in addition to this machine's.
            check: whether an exit code other than 0 is a `TestbedError`.

        Raises:
            WaitError: it did not exit within `timeout_s`; its process group was killed.
        """
        return processes.run(
            self.argv(*argv, cwd=cwd), timeout_s=timeout_s, env=self.env(env), stdin=stdin, check=check
        )

    def popen(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None, **more: Any
    ) -> subprocess.Popen[Any]:
        """Start a program in this host, in its own session; it is killed with the host at the latest."""
        options = {"stdin": subprocess.DEVNULL, "start_new_session": True, **more}
        process = subprocess.Popen(self.argv(*argv, cwd=cwd), env=self.env(env), **options)
        self._started.append(process)
        wait_until(
            f"`{argv[0]}` to be in {self.name}",  # before that, `kill` would not find it
            lambda: self._holds(process.pid) or process.poll() is not None,
            limit_s=120,
            every_s=0.001,
        )
        return process

    def _holds(self, pid: int) -> bool:
        """Whether a process has entered one of the host's namespaces, by which it is found again."""
        return bool(processes.namespaces(pid) & processes.namespaces(self.anchor.pid) - processes.namespaces("self"))

    def daemon(self, argv: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None) -> subprocess.Popen[Any]:
        """Start a program that appends its output to a file."""
        with log.open("ab") as file:
            return self.popen(argv, env=env, stdout=file, stderr=file, cwd="/")

    def processes(self) -> list[Process]:
        """All processes in the host, however they were started: over ssh or Slurm, too."""
        with processes.pinned((self.anchor,)) as own:
            return [process for process in processes.inside(own) if process != self.anchor]

    def kill(self) -> None:
        """Kill the host: SIGKILL to all its processes. Its network stays, so connections are reset; cf. `cut_off`.

        All are stopped first, so that none sees another exit and reports it.
        """
        with processes.pinned((self.anchor,)) as own:
            for process in processes.inside(own):
                if process != self.anchor:
                    process.send(signal.SIGSTOP)
            processes.end(own, spare=(self.anchor,))
        self.reap()

    def reap(self) -> None:
        """Reap child processes that have exited."""
        self._started = [process for process in self._started if process.poll() is None]

    def cut_off(self) -> None:
        """Disconnect the host: packets to and from it are lost."""
        self._on_switch("ip", "link", "set", self.name, "down")

    def reconnect(self) -> None:
        """Undo `cut_off`."""
        self._on_switch("ip", "link", "set", self.name, "up")

    def slow_link(self, rate_kbit: int) -> None:
        """Limit the link to `rate_kbit` kilobits per second each way; packets wait up to 400 ms, then are dropped."""
        shape = ("root", "tbf", "rate", f"{rate_kbit}kbit", "burst", "16kb", "latency", "400ms")
        self._on_switch("tc", "qdisc", "replace", "dev", self.name, *shape)
        self.run(("tc", "qdisc", "replace", "dev", LINK, *shape), check=True)

    def full_speed(self) -> None:
        """Undo `slow_link`."""
        self._on_switch("tc", "qdisc", "delete", "dev", self.name, "root")
        self.run(("tc", "qdisc", "delete", "dev", LINK, "root"), check=True)

    def private_directory(self, directory: Path, *, size_bytes: int | None = None) -> None:
        """Give the host an empty in-memory disk at a directory, which it then shares with no other host.

        Processes that already run in it see the new disk too, except through files that they hold open.
        """
        size = f"size={size_bytes}" if size_bytes else "size=50%"
        self.run(("mount", "-t", "tmpfs", "-o", f"{size},mode=1777", "tmpfs", str(directory)), check=True, cwd="/")

    def shared_directory(self, directory: Path) -> None:
        """Undo `private_directory`; what was in it is lost."""
        self.run(("umount", "--lazy", str(directory)), check=True, cwd="/")

    def path(self, path: Path) -> Path:
        """The path on this machine of one of the host's files."""
        return Path(f"/proc/{self.anchor.pid}/root{path.absolute()}")

    def fill(self, directory: Path) -> Path:
        """Write to a private directory until its disk is full; return the file to delete to make room again."""
        directory_here = self.path(directory)
        if os.stat(directory_here).st_dev == os.stat(directory).st_dev:
            raise TestbedError(
                f"{directory} of {self.name} is the machine's own disk: give it a `private_directory` with a size first"
            )
        filler = directory_here / ".filler"
        with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"\0" * size)
        return filler

    def down(self) -> None:
        """Reap child processes, which the registry has killed."""
        for process in (*self._started, self._anchor_popen):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)

    def _on_switch(self, program: str, *args: str) -> None:
        """Run `ip` or `tc` in the switch's namespace, at the far end of the host's link."""
        processes.run((program, "-netns", self.switch, *args), timeout_s=120, check=True)
