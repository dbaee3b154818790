"""A host of the testbed: a network namespace with a name, a mount and a UTS namespace of its own."""

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
"""What a host calls its only link."""


@dataclass(eq=False)
class Host:
    """One machine of the testbed; its file system is the real machine's, unless `private_directory` hides a part of that."""

    name: str
    address: str
    netns: str
    """Its network namespace, as `ip netns` shows it."""

    switch: str
    """The network namespace with the bridge; the far end of its link is called like the host there."""

    anchor: Process
    """The process that keeps its namespaces while nothing else runs in it."""

    _anchor_popen: subprocess.Popen[bytes] = field(repr=False)
    _started: list[subprocess.Popen[Any]] = field(default_factory=list, repr=False)

    def argv(self, *argv: str, cwd: str | None = None) -> tuple[str, ...]:
        """What to run on the machine so that `argv` runs in this host."""
        enter = ("nsenter", f"--target={self.anchor.pid}", "--net", "--uts", "--mount", f"--wdns={cwd or os.getcwd()}")
        return (*enter, "--", *argv)

    def env(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of what runs here: the machine's, with a PATH that has the daemons."""
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
        """Run a program in this host to its end, with its output kept.

        Args:
            env: variables in addition to the machine's.
            check: whether an exit code other than 0 is a `TestbedError`.

        Raises:
            WaitError: it did not end within `timeout_s`; its process group was killed.
        """
        return processes.run(self.argv(*argv, cwd=cwd), timeout_s=timeout_s, env=self.env(env), stdin=stdin, check=check)

    def popen(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None, **more: Any
    ) -> subprocess.Popen[Any]:
        """Start a program in this host, in a session of its own; it ends with the host at the latest."""
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
        """Whether a process has come into one of its namespaces, which is how it is found again."""
        return bool(processes.namespaces(pid) & processes.namespaces(self.anchor.pid) - processes.namespaces("self"))

    def daemon(self, argv: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None) -> subprocess.Popen[Any]:
        """Start a program whose output goes to the end of a file."""
        with log.open("ab") as file:
            return self.popen(argv, env=env, stdout=file, stderr=file, cwd="/")

    def processes(self) -> list[Process]:
        """All that runs in it, however it was started: daemons and what was started over ssh or Slurm, too."""
        with processes.pinned((self.anchor,)) as own:
            return [process for process in processes.inside(own) if process != self.anchor]

    def kill(self) -> None:
        """The host dies: SIGKILL to all its processes. Its network stays, so connections are reset; cf. `cut_off`.

        All are stopped before, so that none sees another's end and tells of it.
        """
        with processes.pinned((self.anchor,)) as own:
            for process in processes.inside(own):
                if process != self.anchor:
                    process.send(signal.SIGSTOP)
            processes.end(own, spare=(self.anchor,))
        self.reap()

    def reap(self) -> None:
        """Collect those of our children that have ended."""
        self._started = [process for process in self._started if process.poll() is None]

    def cut_off(self) -> None:
        """Take its cable out: what it sends and what is sent to it vanishes."""
        self._on_switch("ip", "link", "set", self.name, "down")

    def reconnect(self) -> None:
        """Plug its cable in again."""
        self._on_switch("ip", "link", "set", self.name, "up")

    def slow_link(self, rate_kbit: int) -> None:
        """Let no more than so many kilobits a second pass, each way; what does not fit waits up to 400 ms, then is lost."""
        shape = ("root", "tbf", "rate", f"{rate_kbit}kbit", "burst", "16kb", "latency", "400ms")
        self._on_switch("tc", "qdisc", "replace", "dev", self.name, *shape)
        self.run(("tc", "qdisc", "replace", "dev", LINK, *shape), check=True)

    def full_speed(self) -> None:
        """Undo `slow_link`."""
        self._on_switch("tc", "qdisc", "delete", "dev", self.name, "root")
        self.run(("tc", "qdisc", "delete", "dev", LINK, "root"), check=True)

    def private_directory(self, directory: Path, *, size_bytes: int | None = None) -> None:
        """Give it a disk of its own at a directory, empty and in memory: it shares that directory with nobody.

        What runs in it already sees the new disk too, except for what it holds open.
        """
        size = f"size={size_bytes}" if size_bytes else "size=50%"
        self.run(("mount", "-t", "tmpfs", "-o", f"{size},mode=1777", "tmpfs", str(directory)), check=True, cwd="/")

    def shared_directory(self, directory: Path) -> None:
        """Undo `private_directory`; what was in it is lost."""
        self.run(("umount", "--lazy", str(directory)), check=True, cwd="/")

    def path(self, path: Path) -> Path:
        """Where the machine itself finds one of the host's files."""
        return Path(f"/proc/{self.anchor.pid}/root{path.absolute()}")

    def fill(self, directory: Path) -> Path:
        """Write to a private directory until its disk is full, and return the file that can be deleted to make room again."""
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
        """Collect our children, whose processes the registry has ended."""
        for process in (*self._started, self._anchor_popen):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)

    def _on_switch(self, program: str, *args: str) -> None:
        """Run `ip` or `tc` where the far end of its link is."""
        processes.run((program, "-netns", self.switch, *args), timeout_s=120, check=True)
