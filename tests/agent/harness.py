"""Runs the real agent through the local backend, and reads back what it streamed."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import psutil

from launcher.agent import protocol
from launcher.agent.system import processes
from launcher.backends.local import ahead
from launcher.backends.local.backend import LocalBackend
from launcher.backends.local.options import LocalOptions
from launcher.runs.sources import JOB_OUTPUT
from launcher.settings import job_spec
from launcher.settings.options import JobOptions
from launcher.system import detached
from tests import matrix

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher import spec
    from launcher.backends.local.handle import LocalHandle
    from tests.agent.warm import WarmStart

SCRIPTS = Path(__file__).parents[1] / "scripts"
LIMIT_S = 90
AGENT_PYTHON = os.environ.get(matrix.AGENT_PYTHON) or sys.executable
"""Runs agents and workers: the tests' own, or that of a cell of `scripts/matrix`."""


@dataclass
class Run:
    """A run that was started; `wait` reads its streams to their end."""

    directory: Path
    handle: LocalHandle
    backend: LocalBackend
    events: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    stdout: dict[int, bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    stderr: dict[int, bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    foreign: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stream = self.backend.open_stream(self.handle)
        self._decoders: dict[int, protocol.Decoder] = defaultdict(protocol.Decoder)

    def pump(self, timeout_s: float = 0.1) -> bool:
        """Read what has arrived; False if nothing has."""
        chunks = self._stream.read(timeout_s)
        for chunk in chunks:
            assert chunk.node != JOB_OUTPUT
            for record in self._decoders[chunk.node].feed(chunk.data):
                if isinstance(record, protocol.Event):
                    self.events.append((chunk.node, record.name, record.fields))
                elif isinstance(record, protocol.Output):
                    into = self.stderr if record.stderr else self.stdout
                    into[record.rank] += record.data + (b"\n" if record.ends_line else b"")
                else:
                    self.foreign.append(record.data)
        return bool(chunks)

    def until(self, met: Callable[[], object]) -> None:
        """Read until `met`."""
        limit = time.monotonic() + LIMIT_S
        while not met():
            self.pump()
            assert time.monotonic() < limit, f"not met in {LIMIT_S} s: {self.events} {self.agent_stderr()}"

    def wait(self) -> Run:
        """Read until all agents have exited."""
        limit = time.monotonic() + LIMIT_S
        while self.pump() or "running" in self.backend.liveness(self.handle).nodes:
            assert time.monotonic() < limit, f"no end in {LIMIT_S} s: {self.events} {self.agent_stderr()}"
        while self.pump(0):
            pass
        return self

    def resume(self, node: int) -> None:
        """Let a node that is held or stopped begin or continue.

        Waits until it is stopped, as a SIGCONT before that would be lost.
        """
        process = psutil.Process(self.agent_pid(node))
        self.until(lambda: process.status() == psutil.STATUS_STOPPED)
        process.resume()

    def close(self) -> None:
        self._stream.close()

    def of(self, name: str) -> list[dict[str, Any]]:
        """The fields of all events of that name."""
        return [fields for _, event, fields in self.events if event == name]

    def result(self) -> str:
        """The result that all nodes agree on; fails if they do not."""
        results = {fields["result"] for fields in self.of("done")}
        assert len(results) == 1, (results, self.events, self.agent_stderr())
        return str(results.pop())

    def cause(self) -> dict[str, Any]:
        """The earliest cause of all nodes."""
        causes = [fields["cause"] for fields in self.of("done") if fields["cause"]]
        return dict(min(causes, key=lambda cause: (cause["secondary"], cause["time"])))

    def warnings(self) -> list[str]:
        """The messages of all warnings."""
        return [str(fields["message"]) for fields in self.of("warning")]

    def failures(self, node: int) -> list[dict[str, Any]]:
        """The causes that one node has reported."""
        return [fields["cause"] for of, name, fields in self.events if name == "failure" and of == node]

    def processes(self, node: int) -> list[psutil.Process]:
        """A node's agent and all processes below it."""
        agent = psutil.Process(self.agent_pid(node))
        return [agent, *agent.children(recursive=True)]

    def agent_pid(self, node: int = 0) -> int:
        return int(self.handle["agents"][node]["pid"])

    def worker_pids(self) -> list[int]:
        return [fields["pid"] for fields in self.of("worker_started")]

    def agent_stderr(self) -> str:
        return "\n".join(path.read_text() for path in self.directory.glob("nodes/*/stderr"))


class Runner:
    """Starts runs and ends what a failed test left running."""

    def __init__(self, tmp_path: Path, warm: WarmStart | None = None) -> None:
        """`warm`: agents are forked from a process that has imported torch."""
        self._warm = warm
        self._tmp_path = self.directory = tmp_path
        self.runs: list[Run] = []

    def start(
        self,
        script: str | Path,
        *args: str,
        kind: spec.Kind = "script",
        cwd: Path | None = None,
        request: dict[str, Any] | None = None,
        late: int | tuple[int, ...] | None = None,
        **options: Any,
    ) -> Run:
        """`script` is a file, or the text of one; `request` are fields of the job beside the options.

        With warm agents, the nodes `late` are held until they are told to `resume`.
        """
        if isinstance(script, str) and "\n" in script:
            path = self._tmp_path / f"script{len(self.runs)}.py"
            path.write_text(script)
            script = path
        options = {"nproc_per_node": "1", "grace": "10s", **_of_matrix(), **options}
        job = job_spec.from_options(
            JobOptions(**options), (str(script), *args), kind=kind, cwd=str(cwd or self._tmp_path)
        )
        directory = self.directory / f"run-{len(self.runs)}"
        directory.mkdir()
        backend = LocalBackend(LocalOptions())
        plan = backend.plan(job, directory)
        plan = replace(plan, job=plan.job._replace(**(request or {})))
        held = [str(node) for node in ((late,) if isinstance(late, int) else late or ())]
        with contextlib.ExitStack() as patched:
            if self._warm:
                start = functools.partial(self._warm.start, held=held)
                patched.enter_context(mock.patch.object(detached, "start_detached", start))
                patched.enter_context(mock.patch.object(ahead, "can_fork", return_value=False))
            run = Run(directory, backend.submit(plan), backend)
        self.runs.append(run)
        return run

    def end_all(self) -> None:
        """End all runs, including those that a failed test has left."""
        for run in self.runs:
            run.backend.cancel(run.handle, force=True)
        for run in self.runs:
            run.close()
            limit = time.monotonic() + LIMIT_S
            while "running" in run.backend.liveness(run.handle).nodes and time.monotonic() < limit:
                time.sleep(0.05)
            for agent in run.handle["agents"]:
                if processes.start_ticks(agent["pid"]) == agent["start_ticks"]:
                    with contextlib.suppress(ProcessLookupError):  # it has exited meanwhile
                        os.kill(agent["pid"], signal.SIGKILL)

    def __call__(self, script: str | Path, *args: str, **options: Any) -> Run:
        """Start a run and wait until it has ended."""
        return self.start(script, *args, **options).wait()


def _of_matrix() -> dict[str, Any]:
    """What `scripts/matrix` asks for: agents and workers under another Python than the tests."""
    python = os.environ.get(matrix.AGENT_PYTHON)
    return {"python": python} if python else {}


def alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    return processes.start_ticks(pid) is not None


def all_exited(*pids: int, within_s: float = LIMIT_S) -> bool:
    """Whether all of these exit in time."""
    limit = time.monotonic() + within_s
    while any(alive(pid) for pid in pids):
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True
