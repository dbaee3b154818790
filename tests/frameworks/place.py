"""Where runs of frameworks are started: a backend with two nodes or more, and a working directory that all see."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from testbed import wait_until
from testbed.running import Running
from tests.chaos import processes
from tests.command import ROOT, Result
from tests.frameworks.catalog import SCRIPTS
from tests.frameworks.environment import ready

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from testbed.processes import Process
    from tests.chaos.processes import Found
    from tests.command import Cli
    from tests.frameworks.catalog import Framework

NODES = 2
LIMIT_S = 900
GONE_S = 30
"""The end of a run takes no longer from one of its processes to the next."""

LINE = re.compile(r"^\[(\d+):(\d+)\] (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Place:
    """One backend, and how it is told about the environment of a framework."""

    backend: str
    cli: Cli
    where: tuple[str, ...] = ()
    env: Mapping[str, str | None] = field(default_factory=dict)
    mounts: bool = False
    """Whether workers see only what is mounted for them."""

    @property
    def work(self) -> Path:
        """The working directory."""
        return self.cli.directory / "work"

    def prepare(self) -> Place:
        """Copy the scripts there."""
        shutil.copytree(SCRIPTS, self.work)
        self.work.chmod(0o777)
        return self

    def argv(self, framework: Framework, *options: str, then: str = "", script: str = "") -> list[str]:
        """The command line; of the options given twice, the last one counts."""
        shape = [f"--nodes={NODES}", "--nproc-per-node=2", "--log-ranks=all", f"--contract={framework.contract}"]
        shape += [f"--env={name}={value}" for name, value in {"OMP_NUM_THREADS": "1", **framework.env}.items()]
        prefix = ready(framework.packages).prefix if framework.packages else None
        if prefix or self.backend == "ansible":
            shape.append(f"--python={prefix / 'bin/python' if prefix else sys.executable}")
        if self.mounts:
            volumes = {self.work: "", **({prefix: ":ro"} if prefix else {})}
            shape += [f"--volume=hostpath:{path}:{path}{mode}" for path, mode in volumes.items()]
        words = [script or framework.script, *([then] if then else [])]
        return [self.backend, *self.where, *shape, *framework.options, *options, *words]

    def run(self, framework: Framework, *options: str, then: str = "", script: str = "") -> Result:
        """A run to its end."""
        argv = self.argv(framework, *options, then=then, script=script)
        return self.cli(*argv, env=self.variables(), cwd=self.work, timeout_s=LIMIT_S)

    def start(self, framework: Framework, *options: str, then: str = "", script: str = "") -> Running:
        """The same, left running."""
        argv = self.argv(framework, *options, then=then, script=script)
        return Running(self.cli.start(*argv, env=self.variables(), cwd=self.work))

    def other(self, *args: str) -> Result:
        """Another command."""
        return self.cli(*args, env=self.variables(), cwd=self.work, timeout_s=LIMIT_S)

    def state(self, name: str) -> dict[str, Any]:
        """What `distlaunch status` reports about the run of that name."""
        found: dict[str, Any] = self.other("status", self.id_of(name), "--output", "json").json["result"]
        return found

    def id_of(self, name: str) -> str:
        """The run of that name."""
        (path,) = self.cli.runs.glob(f"{name}-2*")
        return path.name

    def variables(self) -> dict[str, str | None]:
        return {"PYTHONPATH": str(ROOT), **self.env}


def lines(done: Result) -> dict[int, list[str]]:
    """What each rank has printed; its node is the one that it belongs to."""
    found: dict[int, list[str]] = {}
    for node, rank, text in LINE.findall(f"{done.stdout}\n{done.stderr}"):
        found.setdefault(int(rank), []).append(f"{node}: {text}")
    return found


def sums(done: Result) -> dict[int, tuple[int, int]]:
    """The node of each rank, and the sum that it has printed, exactly once."""
    found = {}
    for rank, texts in lines(done).items():
        told = [match for text in texts if (match := re.fullmatch(rf"(\d+): rank {rank} of 4 on \S+: sum (\d+)", text))]
        if told:
            (match,) = told
            found[rank] = int(match[1]), int(match[2])
    return found


def new_mark(text: str) -> str:
    """The name of a run, which no process has that is not of the run: not even this one, among its variables."""
    return f"{text}-{os.urandom(3).hex()}"


def found_of(mark: str) -> list[Found]:
    """The processes of a run, whose name is the mark; those that mpirun started have it in a variable."""
    return processes.of_run(mark, "with_", None)


@contextmanager
def nothing_left(mark: str) -> Iterator[None]:
    """At the end no process of the run is left; those that are there all the same are killed."""
    try:
        yield
        wait_until(
            "the end of all processes of the run", lambda: not left(mark), limit_s=GONE_S, progress=lambda: left(mark)
        )
    finally:
        for one in found_of(mark):
            one.process.send(signal.SIGKILL)


def left(mark: str) -> list[tuple[Process, str]]:
    """The processes of a run, with their commands."""
    return [(one.process, one.process.command()) for one in found_of(mark)]
