"""`distlaunch` on the login node of the testbed's Slurm."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import pytest

from testbed import SlurmOptions, WaitError, fixtures, wait_until
from tests.command import Result
from tests.slurm.racing import lab, racing  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from testbed.slurm import Slurm
    from tests.command import Cli

T = TypeVar("T")
LIMIT_S = 120
"""Nothing may change for this long in a run that is waited for; the wait may take twice as long in all."""

_LOOK_S = 5.0
_AT_ONCE = 6
_SHOWN_BYTES = 3000
_TOLD = ("stream", "stderr", "job.out", "result.json", "run.json")


@dataclass(frozen=True)
class Login:
    """A shell on the cluster's login node."""

    cli: Cli
    slurm: Slurm

    def __call__(self, *args: str, env: dict[str, str | None] | None = None, **more: Any) -> Result:
        """Run distlaunch with the cluster's Slurm, to its end."""
        return self.cli(*args, env=self.env(env), timeout_s=2 * LIMIT_S, **more)

    def start(self, *args: str, env: dict[str, str | None] | None = None, **more: Any) -> subprocess.Popen[bytes]:
        """Start distlaunch and leave it running."""
        return self.cli.start(*args, env=self.env(env), **more)

    def each(self, commands: Mapping[str, Sequence[str]], **more: Any) -> dict[str, Result]:
        """Run several commands, a few at a time."""
        found: dict[str, Result] = {}
        names = list(commands)
        for first in range(0, len(names), _AT_ONCE):
            started = {name: self.start(*commands[name], **more) for name in names[first : first + _AT_ONCE]}
            found.update({name: end(process) for name, process in started.items()})
        return found

    def follow(self, name: str, *args: str, **more: Any) -> Run:
        """`distlaunch slurm` in a terminal of its own, which shows the run to its end."""
        with open(self.screen(name, "stdout"), "wb") as stdout, open(self.screen(name, "stderr"), "wb") as stderr:
            return Run(self, name, self.start("slurm", "--name", name, *args, stdout=stdout, stderr=stderr, **more))

    def screen(self, name: str, stream: str) -> Path:
        """The file that a run's terminal shows."""
        return self.cli.directory / f"{stream}-{name}"

    def detach(self, name: str, *args: str, **more: Any) -> Run:
        """A run that is not followed."""
        done = self("slurm", "--detach", "--name", name, *args, **more)
        assert done.exit_code == 0, done.stderr
        return Run(self, name)

    def env(self, more: dict[str, str | None] | None = None) -> dict[str, str | None]:
        """Slurm's variables, and some of the test's."""
        return {
            **{key: value for key, value in self.slurm.env().items() if key.startswith(("SLURM", "PATH"))},
            **(more or {}),
        }

    def write(self, name: str, text: str) -> Path:
        """A file on the shared file system."""
        return self.cli.write(name, text)

    def queue(self, fields: str, *more: str) -> list[str]:
        """What squeue prints about all jobs, including ended ones, line by line."""
        return self.slurm.run(("squeue", "--states=all", "--noheader", f"--format={fields}", *more)).stdout.splitlines()


@dataclass(eq=False)
class Run:
    """One run of this user, and the terminal that follows it, if any."""

    login: Login
    name: str
    terminal: subprocess.Popen[bytes] | None = None
    _ended: Result | None = None
    _seen: tuple[float, object] = (0.0, None)

    @cached_property
    def directory(self) -> Path:
        """The run's directory."""
        found = self._until("a directory of the run", lambda: list(self.login.cli.runs.glob(f"{self.name}-*/run.json")))
        return found[0].parent

    @property
    def id(self) -> str:
        """What distlaunch calls it."""
        return self.directory.name

    @property
    def job(self) -> str:
        """Slurm's id of its job."""
        row = self._until("a job", lambda: [line for line in self.login.queue("%A|%k") if line.endswith(f":{self.id}")])
        return row[-1].partition("|")[0]

    def text(self) -> str:
        """All agents' streams."""
        paths = sorted(self.directory.rglob("nodes/*/stream"))
        return "\n".join(path.read_text(errors="replace") for path in paths)

    def wait_for(self, text: str, times: int = 1) -> None:
        """Until its workers have written that this many times."""
        self._until(f"{text!r} from its workers, {times} times", lambda: self.text().count(f" {text}") >= times)

    def wait_for_event(self, name: str, times: int = 1) -> None:
        """Until its agents have sent that event this many times."""
        self._until(f"the event {name!r}, {times} times", lambda: self.text().count(f'{{"event":"{name}"') >= times)

    def wait_shown(self, stream: str, text: str) -> None:
        """Until its terminal shows that."""
        self._until(f"{text!r} on {stream}", lambda: text in self.shown(stream))

    def wait_state(self, *states: str) -> None:
        """Until its job is in one of these states."""
        self.login.slurm.wait_job(self.job, *states)

    def wait_reason(self, *reasons: str) -> None:
        """Until its job waits for one of these reasons."""
        argv = ("--states=PD", f"--jobs={self.job}")
        self._until(f"to wait because of {reasons}", lambda: set(self.login.queue("%r", *argv)) & set(reasons))

    def wait_file(self, pattern: str) -> None:
        """Until there is such a file in the working directory."""
        self._until(f"a file {pattern}", lambda: list(self.login.cli.directory.glob(pattern)))

    def interrupt(self) -> None:
        """Ctrl-C in its terminal."""
        assert self.terminal is not None
        self.terminal.send_signal(signal.SIGINT)

    def end(self) -> Result:
        """What its terminal has shown once it has ended."""
        assert self.terminal is not None
        if self._ended is None:
            process = self.terminal
            self._until("the end", lambda: _exited(process), alive=False)
            self._ended = Result(process.returncode, self.shown("stdout"), self.shown("stderr"))
        return self._ended

    def kill(self) -> None:
        """Close its terminal, if it still follows."""
        if self.terminal is not None:
            self.terminal.kill()
            self.terminal.wait()

    def shown(self, stream: str) -> str:
        """What its terminal has shown so far."""
        return self.login.screen(self.name, stream).read_text(errors="replace")

    def wait_end(self) -> dict[str, Any]:
        """The final state of a run that is not followed."""
        self._until("its final state", lambda: self.status()["exit_code"] is not None, alive=False, every_s=0.5)
        return self.status()

    def status(self) -> dict[str, Any]:
        """What `distlaunch status` reports."""
        found: dict[str, Any] = self.login("status", self.id, "--output", "json").json["result"]
        return found

    def _until(self, what: str, condition: Callable[[], T], *, alive: bool = True, every_s: float = 0.1) -> T:
        """Wait for something while anything about the run changes; the error shows what there is of it."""
        end_at = time.monotonic() + 2 * LIMIT_S

        def reached() -> T:
            answer = condition()
            if (
                not answer
                and alive
                and self.terminal is not None
                and self.terminal.poll() is not None
                and not condition()
            ):
                raise WaitError("its terminal has ended")
            if not answer and time.monotonic() > end_at:
                raise WaitError(f"much has happened in {2 * LIMIT_S} s, but not that")
            return answer

        try:
            return wait_until(what, reached, limit_s=LIMIT_S, every_s=every_s, progress=self._progress)
        except WaitError as error:
            raise WaitError(f"waited for {what} of run {self.name}: {error}\n{self._story()}") from None

    def _progress(self) -> object:
        """What its processes have written except heartbeats, and what Slurm reports; looked at now and then."""
        if time.monotonic() - self._seen[0] > _LOOK_S:
            paths = [path for path in self.login.cli.runs.glob(f"{self.name}-*/**/*") if path.name in _TOLD]
            lines = sum(
                b'{"event":"heartbeat"' not in line for path in paths for line in path.read_bytes().splitlines()
            )
            self._seen = time.monotonic(), (lines, self.login.queue("%i %T %r", f"--name={self.name}"))
        return self._seen[1]

    def _story(self) -> str:
        """What there is of it instead of what was waited for."""
        paths = sorted(self.login.cli.runs.glob(f"{self.name}-*/**/*"))
        paths = [path for path in paths if path.name in _TOLD]
        paths += [path for stream in ("stdout", "stderr") if (path := self.login.screen(self.name, stream)).exists()]
        told = [f"{path}:\n{path.read_bytes()[-_SHOWN_BYTES:].decode(errors='replace')}" for path in paths]
        code = self.terminal and self.terminal.poll()
        return "\n".join((*told, f"exit code of its terminal: {code}", self.login.slurm.story()))


def end(process: subprocess.Popen[bytes]) -> Result:
    """The result of a command, once it has ended."""
    late = False
    try:
        stdout, stderr = process.communicate(timeout=2 * LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
        late = True
    done = Result(process.returncode, (stdout or b"").decode(errors="replace"), stderr.decode(errors="replace"))
    if late:
        raise WaitError(f"waited for the end of {process.args!r}, which has printed:\n{done.stdout}\n{done.stderr}")
    return done


def _exited(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(timeout=0.1)
    except subprocess.TimeoutExpired:
        return False
    return True


@contextmanager
def idle_afterwards(login: Login) -> Iterator[Login]:
    """Lend it, then cancel what is left."""
    try:
        yield login
    finally:
        login.slurm.cancel_all()
        login.slurm.wait_idle()


@pytest.fixture
def login(slurm: Slurm, distlaunch: Cli) -> Iterator[Login]:
    """Leaves the cluster idle."""
    with idle_afterwards(Login(distlaunch, slurm)) as login:
        yield login


@pytest.fixture(scope="module")
def fragile() -> Iterator[Slurm]:
    """A Slurm of the module's own with six hosts, in which a daemon that is delayed for seconds is not lost yet."""
    options = SlurmOptions(dead_after_s=5, conf={"MessageTimeout": "5"})  # well before our agents miss one another
    with fixtures.make(6, slurm=options) as testbed:
        yield testbed.slurm


@pytest.fixture
def mishaps(fragile: Slurm, distlaunch: Cli) -> Iterator[Login]:
    """A login node of the cluster that may be broken; afterwards it is whole and idle again."""
    with idle_afterwards(Login(distlaunch, fragile)) as login:
        yield login
