"""One scenario, played by torchrun and by `distlaunch torchrun`: what launchers, workers and files show.

torchrun is forked from a process that has imported it, so a scenario needs no import of torch; no worker imports it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.agent.network import ports
from testbed import wait_until
from tests import fork_servers, forked
from tests.command import ROOT

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

WORKER = str(ROOT / "tests/scripts/behaviour.py")
ENGINES = ("torchrun", "distlaunch torchrun")
LIMIT_S = 120
_OF_OTHERS = re.compile(
    r"DISTLAUNCH_|PET_|TORCHELASTIC_|OMP_NUM_THREADS$|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)$|MASTER_|ROLE_NAME$"
)


@cache
def _torchrun() -> forked.Server:
    return forked.Server(["torch.distributed.run"], env=fork_servers.AT_START)


class Ended(NamedTuple):
    """How one launcher ended."""

    code: int
    stdout: str
    stderr: str


@dataclass
class Play:
    """A scenario as one engine plays it, in a directory of its own."""

    engine: str
    directory: Path
    nodes: list[subprocess.Popen[Any]] = field(default_factory=list)
    given: list[dict[str, str]] = field(default_factory=list)
    """Their variables."""

    ended: list[Ended] = field(default_factory=list)

    def start(
        self,
        *options: str,
        env: dict[str, str] | None = None,
        stdin: Any = subprocess.DEVNULL,
        stdout: Any = subprocess.PIPE,
    ) -> subprocess.Popen[Any]:
        """A launcher, for one node."""
        given = {name: value for name, value in os.environ.items() if not _OF_OTHERS.match(name)}
        given |= {
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.directory),
            "TMPDIR": str(self.temporary),
            "SEEN": str(self.seen),
        }
        given["DISTLAUNCH_RUNS_DIR"] = str(self.directory / "runs")
        how: dict[str, Any] = {
            "stdin": stdin,
            "stdout": stdout,
            "stderr": subprocess.PIPE,
            "start_new_session": True,
        }
        given |= env or {}
        self.given.append(given)
        how |= {"cwd": self.directory, "env": given}
        if self.engine == "torchrun":
            process = _torchrun().popen(["torch.distributed.run:main", *options], **how)
        else:
            process = fork_servers.commands().popen([sys.executable, "-m", "launcher", "torchrun", *options], **how)
        self.nodes.append(process)
        return process

    @property
    def seen(self) -> Path:
        """Where workers note what they are given."""
        return self.directory / "seen"

    @property
    def temporary(self) -> Path:
        """TMPDIR."""
        return self.directory / "tmp"

    @property
    def workers(self) -> list[dict[str, Any]]:
        """What workers have noted, by round and rank."""
        found = [json.loads(path.read_text()) for path in self.seen.glob("*.json")]
        return sorted(
            found, key=lambda noted: (int(noted["env"]["TORCHELASTIC_RESTART_COUNT"]), int(noted["env"]["RANK"]))
        )

    def files(self, directory: str) -> dict[str, str]:
        """The text of all files below it, by path; `_XXXXXXXX` of a name made for this run is `_*`."""
        below = self.directory / directory
        paths = sorted(path for path in below.rglob("*") if path.is_file())
        return {re.sub(r"_[a-z0-9_]{8}(?=/)", "_*", str(path.relative_to(below))): path.read_text() for path in paths}

    def until(self, count: int, what: str = "ready", **wanted: str) -> None:
        """Wait until `count` workers have noted this, with these variables."""

        def there() -> bool:
            noted = [each for each in self.workers if each.get(what)]
            here = [each for each in noted if all(each["env"].get(name) == value for name, value in wanted.items())]
            return len(here) >= count or all(node.poll() is not None for node in self.nodes)

        wait_until(f"{count} workers to be {what}", there, limit_s=LIMIT_S)

    def end(self) -> None:
        """Wait for all launchers."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            try:
                both = list(pool.map(lambda node: node.communicate(timeout=LIMIT_S), self.nodes))
            except BaseException:
                self.kill()
                raise
        texts = [[(data or b"").decode(errors="replace") for data in each] for each in both]
        self.ended = [Ended(node.returncode, *text) for node, text in zip(self.nodes, texts, strict=True)]

    def kill(self) -> None:
        """End what is left of it after something has gone wrong."""
        for node in self.nodes:
            node.kill()
        for noted in self.workers:
            with suppress(OSError):
                if runs(noted):
                    os.kill(noted["pid"], signal.SIGKILL)

    @property
    def codes(self) -> list[int]:
        """The launchers' exit codes."""
        return [ended.code for ended in self.ended]


def signals(play: Play) -> list[list[str]]:
    """The signals that each worker has received."""
    return [noted["signals"] for noted in play.workers]


def rounds(play: Play) -> list[list[str]]:
    """Round and rank of each worker."""
    return [[noted["env"]["TORCHELASTIC_RESTART_COUNT"], noted["env"]["RANK"]] for noted in play.workers]


def of(play: Play, *names: str) -> list[list[str | None]]:
    """The values of variables for each worker."""
    return [[noted["env"].get(name) for name in names] for noted in play.workers]


def lines(text: str) -> list[str]:
    """The lines that workers have written, sorted."""
    return sorted(line for line in text.splitlines() if " of " in line or "line" in line)


def shown(play: Play) -> tuple[list[str], list[str]]:
    """The part of the workers' output that the launcher shows on stdout and stderr."""
    return lines(play.ended[0].stdout), [line for line in lines(play.ended[0].stderr) if "err of" in line]


def runs(noted: dict[str, Any]) -> bool:
    """Whether the worker that has noted this still runs."""
    try:
        return WORKER.encode() in Path(f"/proc/{noted['pid']}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


class Both(NamedTuple):
    """The same scenario, played by both."""

    theirs: Play
    ours: Play

    def same(self, look: Callable[[Play], Any]) -> Any:
        """What both show, which must be the same."""
        theirs, ours = look(self.theirs), look(self.ours)
        print(*self.theirs.ended, *self.ours.ended, sep="\n")  # with a failure
        assert ours == theirs
        return ours


def play(scene: Callable[[Play], None], directory: Path) -> Both:
    """Both engines at once."""

    def one(engine: str) -> Play:
        playing = Play(engine, directory / engine.replace(" ", "-"))
        for path in (playing.seen, playing.temporary):
            path.mkdir(parents=True)
        try:
            scene(playing)
        except BaseException:
            playing.kill()
            raise
        playing.end()
        return playing

    _torchrun()
    fork_servers.commands()
    with ThreadPoolExecutor(2) as pool:
        return Both(*pool.map(one, ENGINES))


_held: list[socket.socket] = []


def free_port() -> int:
    """A port without a listener that only a process that names it gets: it is held until the tests end."""
    _held.append(ports.lent())
    return ports.port_of(_held[-1])


def listened_on(port: int) -> bool:
    """Whether a process listens there; read from the kernel, as the listener would count a connection."""
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return any(line[1].endswith(f":{port:04X}") and line[3] == "0A" for line in lines)
