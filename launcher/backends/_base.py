"""The contract that a backend keeps: one file ending in `BACKEND = ...`, found by its name, imported on use."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from launcher.agent.job import FUNCTION_FILE, KEY_FILE
from launcher.errors import CommandError
from launcher.system import storage, trust

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.agent.job import Job
    from launcher.payload.snapshot import Snapshot
    from launcher.results.run import ClusterRun
    from launcher.runs.handle import Handle
    from launcher.runs.liveness import Liveness
    from launcher.runs.outcome import Outcome
    from launcher.runs.records import Run
    from launcher.runs.sources import Source
    from launcher.spec import JobSpec
    from launcher.system.pipes import Bridge

_UNDO_S = 20.0

Record = Callable[["Handle"], None]
"""Notes a handle in the run's directory."""


def unrecorded(_handle: Handle) -> None:
    """A `Record` for those who need none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNode:
    """One row of the plan table."""

    node_rank: int
    host: str
    workers: int | None
    """None: known only on the node."""


class Plan(Protocol):
    """Exactly what would be sent. Backends have their own; these are what everyone may read."""

    @property
    def nodes(self) -> tuple[PlannedNode, ...]:
        """Node by node, in rank order."""

    @property
    def master(self) -> str:
        """MASTER_ADDR and port for the plan table, `ADDR:PORT`, or `ADDR (port chosen at start)`."""

    def to_json(self) -> Mapping[str, Any]:
        """The whole plan as plain JSON: `Planned` beside each backend's plan."""


P = TypeVar("P", bound=Plan)
H = TypeVar("H", bound="Handle")
Opts = TypeVar("Opts")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of one node's agent stream, in order, cut anywhere."""

    node: Source

    data: bytes


class Written(NamedTuple):
    """What `Backend.write` has put into a directory."""

    texts: Mapping[str, str]
    more: tuple[str, ...] = ()
    """Names of the other files, and of directories of the user's files, those with a slash at the end."""


class Stream(Protocol):
    """The agent streams of a run's nodes while it goes on."""

    def read(self, timeout_s: float) -> list[Chunk]:
        """What has come since the last call; waits up to `timeout_s` for something, empty when nothing came."""

    def close(self) -> None:
        """Let go of files and connections."""


class Backend(ABC, Generic[P, H, Opts]):
    """Sends a `JobSpec` to one kind of cluster and watches it there: by its plans, handles and options."""

    name: ClassVar[str]
    options: ClassVar[type]
    """Dataclass of the backend's own options (`launcher.settings.options.option` fields); instances go to the constructor."""

    prints: ClassVar[Mapping[str, str]] = {}
    """Flags, by their names as parameters and with their help, that print something and start nothing."""

    ask_every_s: ClassVar[float] = 10.0
    """A run that is followed is asked about at least so often; a cluster's controller has others to serve."""

    can_requeue: ClassVar[bool] = False
    """Whether it has `requeue`."""

    can_adopt: ClassVar[bool] = False
    """Whether it has `adopt`."""

    can_list: ClassVar[bool] = False
    """Whether it has `found`."""

    has_terminals: ClassVar[bool] = False
    """Whether it has `open_terminal`."""

    is_here: ClassVar[bool] = False
    """Its nodes are this machine: workers can have our very stdin, and nothing lies between us and their terminals."""

    def __init__(self, options: Opts) -> None:
        self.opts = options

    @property
    def may_start_again(self) -> bool:
        """Whether the cluster starts a run again that it has stopped: then `liveness` decides when such a run has ended."""
        return False

    def settings_files(self) -> list[str]:
        """Files beside ours that settings are read from, as they are found now."""
        return []

    @abstractmethod
    def plan(self, spec: JobSpec, run_dir: Path) -> P:
        """Exactly what `submit` would send. Writes nothing, starts nothing."""

    @abstractmethod
    def render(self, plan: P) -> Mapping[str, str]:
        """The plan as texts that a person can read, sign and run by hand: file name to content."""

    def payload(self, plan: P) -> Mapping[str, bytes]:  # noqa: ARG002 - for those that have some
        """Files beside the rendered texts that are no text; `--render-to` writes them, too."""
        return {}

    def files(self, plan: P) -> Snapshot | None:  # noqa: ARG002 - for those that send some
        """The user's files that go along."""
        return None

    def marks(self, plan: P) -> tuple[str, ...]:  # noqa: ARG002 - for those that have others
        """Texts that every directory which `write` has filled has; the first one names the run."""
        return ("spec.json", "start.sh")

    def write(self, plan: P, directory: Path) -> Written:
        """Write all that it takes to run the plan by hand, with the launcher gone and the directory moved."""
        texts, more = self.render(plan), self.payload(plan)
        write_files(directory, {name: text.encode(errors="surrogateescape") for name, text in texts.items()})
        write_files(directory, more)
        return Written(texts, tuple(more))

    def printed(self, flag: str) -> str:
        """What one of `prints` prints."""
        raise NotImplementedError(flag)

    @abstractmethod
    def submit(self, plan: P, record: Record = unrecorded) -> H:
        """Send the plan; the run directory exists already. Returns the handle that the other calls take.

        Before anything is started, `record` gets a handle that `recover` finds it by, and again where there is more to find.
        Where it fails, the caller has `undo` end what was started. An error that is `in_part`: something may yet come of it.
        """

    def recover(self, handle: H) -> H | None:
        """What is there of a submission that was cut off, out of what was recorded last; None where nothing was started.

        Changes nothing there: commands that only look ask for it.
        """
        return handle

    def undo(self, handle: H) -> None:
        """End at once what there is of a submission that went wrong. Raises where it is not certain that nothing is left."""
        found = self.recover(handle)
        if found is None:
            return
        self.cancel(found, force=True)
        limit = time.monotonic() + _UNDO_S
        while any(state != "ended" for state in self.liveness(found).nodes):
            if time.monotonic() > limit:
                raise CommandError(f"what was started has not ended within {_UNDO_S:.0f} s")
            time.sleep(0.05)

    @abstractmethod
    def liveness(self, handle: H) -> Liveness:
        """Which nodes still have something of this run on them."""

    def left(self, handle: H) -> str:  # noqa: ARG002 - for those that can
        """What of the run is still there, in words by which a person finds it; empty where nobody knows."""
        return ""

    def refresh(self, handle: H) -> None:
        """Bring the streams in the run's directory up to date, where it is us who writes them there. Has a limit of its own."""

    @abstractmethod
    def open_stream(self, handle: H) -> Stream:
        """The agent streams: from their start, or from the byte offsets per node that the handle has as `shown`."""

    def open_terminal(self, handle: H, node: int, rank: int) -> Bridge:
        """A connection to the agent's socket for the terminal of that rank's worker, which runs on that node.

        Waits for it, with a limit, and raises `LaunchError`; what goes wrong later ends the stream, and its `end` says why.
        """
        raise NotImplementedError

    @abstractmethod
    def cancel(self, handle: H, *, force: bool = False) -> None:
        """Ask the run to end (SIGTERM, then SIGKILL after its grace time); `force`: SIGKILL at once. Returns at once."""

    def release(self, handle: H) -> None:
        """The run, which was followed, is over: let go of what it may still hold there."""

    @abstractmethod
    def signal(self, handle: H, signum: int) -> None:
        """Pass a signal on to every worker."""

    def found(self) -> list[ClusterRun]:
        """Runs that the cluster itself knows, whoever has started them."""
        raise NotImplementedError

    def adopt(self, text: str, runs_root: Path) -> Run:
        """Make a run that another machine has started, found by the start of its id, one of `runs_root`."""
        raise NotImplementedError

    def goes_on(self, handle: H, outcome: Outcome) -> bool:  # noqa: ARG002 - for those that can
        """Whether a run that ended so, while it was followed, is to be started again by `requeue`."""
        return False

    def requeue(self, handle: H, attempt: int, record: Record = unrecorded) -> H:
        """Start the run again in its directory, as its `attempt`-th further time; returns the handle from now on.

        `record` as in `submit`: once it was called, the run has not ended any more.
        """
        raise NotImplementedError


AnyBackend: TypeAlias = Backend[Any, Any, Any]
"""One of which it is not known which."""


def master_text(address: str, port: int) -> str:
    """MASTER_ADDR and port as `Plan.master` has them; port 0 is chosen at start."""
    return f"{address}:{port}" if port else f"{address} (port chosen at start)"


def write_beside(directory: Path, job: Job) -> tuple[str, ...]:
    """What belongs beside a run's spec.json, for its owner alone: a new key, and the function to call. The files' names."""
    contents = {KEY_FILE: new_key(), **({FUNCTION_FILE: job.function} if job.function else {})}
    for name, text in contents.items():
        storage.write_whole(directory / name, text.encode("ascii"), mode=0o600)
    return tuple(contents)


def new_key() -> str:
    """The secret by which a run's nodes know one another."""
    return os.urandom(32).hex() + "\n"


def write_files(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Write files below a directory, making directories as needed; each file appears whole, and none is written by a link."""
    for inner in dict.fromkeys((directory / name).parent for name in contents):
        with storage.storage_errors(inner):
            trust.make("directory", inner, 0o755)
    for name, content in contents.items():
        storage.write_whole(directory / name, content)
