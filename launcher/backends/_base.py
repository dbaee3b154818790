"""The contract of a backend: one file that ends in `BACKEND = ...`, found by its name, imported on use."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from launcher.agent.named_tuple import NamedTuple
from launcher.agent.system.processes import ASKS_FOR_STACKS
from launcher.backends._plan import Plan
from launcher.backends._writing import write_files
from launcher.errors import CommandError
from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.backends._outlook import Outlook
    from launcher.backends._outputs import Outputs
    from launcher.payload.snapshot import Snapshot
    from launcher.results.cluster import SurveyedHost
    from launcher.results.run import ClusterRun
    from launcher.results.warm import WarmServer
    from launcher.runs.handle import Handle
    from launcher.runs.liveness import Liveness
    from launcher.runs.reader import Wanted
    from launcher.runs.records import Run
    from launcher.runs.sources import Source
    from launcher.spec import JobSpec
    from launcher.system.pipes import Bridge

_UNDO_S = 20.0

Record = Callable[["Handle"], None]
"""Records a handle in the run's directory: from then on, the run does not count as ended."""


def unrecorded(_handle: Handle) -> None:
    """A `Record` that records nothing."""


P = TypeVar("P", bound=Plan)
H = TypeVar("H", bound="Handle")
Opts = TypeVar("Opts")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of one node's agent stream, in order, split anywhere."""

    node: Source
    data: bytes
    more: bool = False
    """Whether another one of this node follows at once, which may be empty."""


class Written(NamedTuple):
    """What `Backend.write` has written to a directory."""

    texts: Mapping[str, str]
    more: tuple[str, ...] = ()
    """Names of the other files and, with a trailing slash, of directories of the user's files."""


class Stream(Protocol):
    """The agent streams of a run's nodes while it runs."""

    def read(self, timeout_s: float) -> list[Chunk]:
        """What has arrived since the last call; waits up to `timeout_s`, and is empty if nothing arrived."""

    def omit(self, wanted: Wanted) -> None:
        """Lines of other ranks need not be read: where they are many, they are left out from now on."""

    def close(self) -> None:
        """Close files and connections."""


class Backend(ABC, Generic[P, H, Opts]):
    """Sends a `JobSpec` to one kind of cluster and watches it there; generic over its plans, handles and options."""

    name: ClassVar[str]
    options: ClassVar[type]
    """Dataclass of the backend's own options (`launcher.settings.options.option` fields); the constructor takes one."""

    prints: ClassVar[Mapping[str, str]] = {}
    """Flags that print something and start nothing: help text by parameter name."""

    asks_for_stacks: ClassVar[int] = ASKS_FOR_STACKS
    """The signal by which agents take the stacks of their workers; it must not harm other processes that get it."""

    ask_every_s: ClassVar[float] = 10.0
    """Maximum time between queries about a followed run; a cluster's controller serves other users, too."""

    more_cpus: ClassVar[str] = ""
    """The option that gives each node more CPUs, if the scheduler limits them."""

    can_requeue: ClassVar[bool] = False
    """Whether it has `requeue`."""

    can_adopt: ClassVar[bool] = False
    """Whether it has `adopt`."""

    can_list: ClassVar[bool] = False
    """Whether it has `found`."""

    can_survey: ClassVar[bool] = False
    """Whether it has `hosts`."""

    can_keep: ClassVar[bool] = False
    """Whether fork servers may stay after a run (`--warm`), and it has `standing`."""

    has_outlook: ClassVar[bool] = False
    """Whether it has `outlook`."""

    has_queue: ClassVar[bool] = False
    """Whether runs wait in a queue, and the cluster chooses their hosts when they start."""

    has_terminals: ClassVar[bool] = False
    """Whether it has `open_terminal`."""

    has_outputs: ClassVar[bool] = False
    """Whether it has `open_outputs`."""

    shares_outputs: ClassVar[bool] = False
    """Whether all nodes write their files to the same file system."""

    loses_outputs: ClassVar[bool] = False
    """Whether the files of a node are lost when its agent ends, so that it waits until they are fetched."""

    is_here: ClassVar[bool] = False
    """Whether its nodes are this machine: workers can inherit our stdin, and their terminals need no connection."""

    def __init__(self, options: Opts) -> None:
        self.opts, self.cluster = options, ""  # the cluster's name in the settings, for messages

    @property
    def may_start_again(self) -> bool:
        """Whether the cluster restarts a run that it has stopped; if so, `liveness` decides when the run has ended."""
        return False

    def sees_outputs(self) -> bool:
        """Whether the file system that nodes share is also here."""
        return self.shares_outputs

    def settings_files(self) -> list[str]:
        """Files other than ours that settings are read from, as found now."""
        return []

    @abstractmethod
    def plan(self, spec: JobSpec, run_dir: Path) -> P:
        """Exactly what `submit` would send. Writes nothing, starts nothing."""

    @abstractmethod
    def render(self, plan: P) -> Mapping[str, str]:
        """The plan as texts that the user can read, sign and run by hand: file name to content."""

    def payload(self, plan: P) -> Mapping[str, bytes]:  # noqa: ARG002 - for overrides
        """Binary files that belong to the rendered texts; `--render-to` writes them, too."""
        return {}

    def files(self, plan: P) -> Snapshot | None:  # noqa: ARG002 - for overrides
        """The user's files that are sent along, if any."""
        return None

    def marks(self, plan: P) -> tuple[str, ...]:  # noqa: ARG002 - for overrides
        """Names of texts in every directory that `write` has filled; the first one names the run."""
        return ("spec.json", "start.sh")

    def write(self, plan: P, directory: Path) -> Written:
        """Write everything needed to run the plan by hand, even without the launcher or in another directory."""
        texts, more = self.render(plan), self.payload(plan)
        encoded = {name: text.encode(errors="surrogateescape") for name, text in texts.items()}
        write_files(directory, {**encoded, **more})
        return Written(texts, tuple(more))

    def printed(self, flag: str) -> str:
        """The output of one of the flags in `prints`."""
        raise NotImplementedError(flag)

    @abstractmethod
    def submit(self, plan: P, record: Record = unrecorded) -> H:
        """Send the plan; the run directory exists already. Returns the handle that the other calls take.

        Before anything is started, `record` gets a handle that lets `recover` find it, and again once there is more to
        find. On failure, the caller ends what was started with `undo`. After an error that is `in_part`, something may
        still start.
        """

    def recover(self, handle: H) -> H | None:
        """What exists of an interrupted submission, by what was recorded last; None if nothing was started.

        Changes nothing on the cluster, as read-only commands call it.
        """
        return handle

    def undo(self, handle: H) -> None:
        """End at once what exists of a failed submission. Raises if something may be left."""
        if (found := self.recover(handle)) is None:
            return
        self.cancel(found, force=True)
        limit = time.monotonic() + _UNDO_S
        while any(state != "ended" for state in self.liveness(found).nodes):
            if time.monotonic() > limit:
                raise CommandError(f"what was started has not ended within {_UNDO_S:.0f} s")
            time.sleep(0.05)

    @abstractmethod
    def liveness(self, handle: H) -> Liveness:
        """Which nodes still run something of this run."""

    def left(self, handle: H) -> str:  # noqa: ARG002 - for overrides
        """What is left of the run, in terms by which the user can find it; empty if unknown."""
        return ""

    def brings_all(self, handle: H) -> bool:  # noqa: ARG002 - for overrides
        """Whether `refresh` and `open_stream` bring all streams; else only those that tell how the run is."""
        return True

    def bring(self, handle: H, nodes: Iterable[int]) -> None:
        """Have these nodes' streams brought, too, from now on, of a run of which not all are."""

    def refresh(self, handle: H) -> None:
        """Update the streams in the run's directory, if the launcher writes them there. Has its own time limit."""

    @abstractmethod
    def open_stream(self, handle: H, offsets: Mapping[int, int] | None = None) -> Stream:
        """The agent streams from their start, or from a byte offset for each node whose stream was read that far."""

    def open_terminal(self, handle: H, node: int, rank: int | None) -> Bridge:
        """A connection to the terminal of that node's rank; without a rank, to a new shell beside the workers.

        Waits for it up to a limit, then raises `LaunchError`; a later error ends the stream, and `end` has the reason.
        """
        raise NotImplementedError

    def open_outputs(self, handle: H, node: int) -> Outputs:
        """The files that the workers of that node have written. Raises `LaunchError` if they cannot be reached."""
        raise NotImplementedError

    @abstractmethod
    def cancel(self, handle: H, *, force: bool = False) -> None:
        """Ask the run to end (SIGTERM, SIGKILL after its grace time); `force`: SIGKILL at once. Does not wait."""

    def release(self, handle: H) -> None:
        """Release what a followed run still holds on the cluster after its end."""

    def remove(self, handle: H) -> None:
        """Remove what an ended run has left on the cluster and its hosts; the caller removes the run's directory."""

    @abstractmethod
    def signal(self, handle: H, signum: int) -> None:
        """Forward a signal to every worker."""

    def found(self) -> list[ClusterRun]:
        """Runs that the cluster itself knows, no matter who started them."""
        raise NotImplementedError

    def hosts(self) -> list[SurveyedHost]:
        """Its hosts, and who has them."""
        raise NotImplementedError

    def standing(self, *, end: bool) -> list[WarmServer]:
        """This user's fork servers that stand on its hosts; `end`: those that were ended now."""
        raise NotImplementedError

    def outlook(self, spec: JobSpec, gpus: int | None) -> Outlook:
        """What the cluster has, and when this job would start there; submits nothing.

        `gpus`: how many it needs per node, for a backend without an option for that.
        """
        raise NotImplementedError

    def adopt(self, text: str, runs_root: Path) -> Run:
        """Add a run that was started on another host, found by a prefix of its id, to `runs_root`."""
        raise NotImplementedError

    def restarts_left(self, handle: H) -> int:  # noqa: ARG002 - for overrides
        """How often a process that follows the run may still start it again, by `requeue`, without what was lost."""
        return 0

    def last_attempt(self, handle: H) -> int:  # noqa: ARG002 - for overrides
        """The run's last attempt, by streams of which not all may have been brought here; 0 if none are brought."""
        return 0

    def requeue(self, handle: H, attempt: int, record: Record = unrecorded) -> H:
        """Start the run again in its directory, as this attempt; returns its new handle. `record` as in `submit`."""
        raise NotImplementedError


AnyBackend: TypeAlias = Backend[Any, Any, Any]
"""A backend of any kind."""


def master_text(address: str, port: int | None) -> str:
    """MASTER_ADDR and port as `Plan.master` has them; None: the port is chosen at start."""
    return f"{address}:{port}" if port else f"{address} (port chosen at start)"
