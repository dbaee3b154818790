"""Which streams of a large run its backend has to bring: those that are shown, and those that tell of a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.protocol import Event
from launcher.errors import LaunchError
from launcher.runs import status
from launcher.system import amounts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from launcher.agent.messages import LentTerminal
    from launcher.backends._base import AnyBackend
    from launcher.runs.reader import Wanted
    from launcher.runs.records import Run
    from launcher.runs.sources import Source

_FEW_NODES = 100
"""No backend brings only some of the streams of so few nodes."""


class Bringing:
    """Asks for the streams of one run that is followed, as it becomes known which are needed."""

    def __init__(self, run: Run, backend: AnyBackend, ranks: Collection[int]) -> None:
        """`run` was submitted; `ranks`: those that are shown."""
        self._run, self._backend, self._ranks = run, backend, ranks
        self._asked = {0}
        self._show(None)

    def event(self, node: int, record: Event) -> None:
        """Ask for what is shown, once node 0 tells which ranks it has, and for the node that is to blame."""
        cause = record.fields.get("cause")
        if isinstance(cause, dict) and isinstance(cause.get("node"), int):
            self._ask([cause["node"]])
        if node == 0 and record.name == "rendezvous":
            self._show(_count(record))

    def _show(self, workers: int | None) -> None:
        self._ask(nodes_of(self._run, self._ranks, workers))

    def _ask(self, nodes: Iterable[int]) -> None:
        if new := set(nodes) - self._asked:
            self._asked |= new
            self._backend.bring(self._run.known, new)


def of(
    run: Run, backend: AnyBackend, ranks: Wanted | None, terminal: LentTerminal | None, nodes: Iterable[int]
) -> Bringing | None:
    """For a run of which not all streams are brought. `ranks`: those that are shown; `nodes`: needed, too."""
    if backend.brings_all(run.known):
        return None
    backend.bring(run.known, nodes)
    output.note(told(run))
    rank = terminal["rank"] if terminal else None
    return Bringing(run, backend, {*(ranks or ()), *(() if rank is None else (rank,))})


def told(run: Run) -> str:
    """What is followed of a large run, and how to see more."""
    what = f"of {len(run.hosts)} nodes, only the logs of node 0, of ranks that are shown and of failures are followed"
    return f"{what}; any other: distlaunch logs --node N {run.id}"


def nodes_of(run: Run, ranks: Collection[int], workers: int | None) -> set[int]:
    """The nodes with these ranks, which count on over all roles; `workers`: how many a node has, if no plan tells."""
    found: set[int] = set()
    first = 0
    for row in run.plan.get("nodes") or () if ranks else ():
        after = first + (row.get("workers") or workers or 0)
        if any(first <= rank < after for rank in ranks):
            found.add(int(row.get("node_rank", 0)))
        first = after
    return found


def everything(run: Run, backend: AnyBackend) -> None:
    """Have all streams brought."""
    if not backend.brings_all(run.known):
        backend.bring(run.known, range(len(run.hosts)))


def for_logs(run: Run, nodes: Collection[Source], ranks: Wanted | None, *, follow: bool) -> None:
    """Have the streams of these nodes, or ranks, brought to be printed; of a run that has ended, as far as they exist.

    With `follow`, all of them stands for those that matter.
    """
    if run.handle is None or len(run.hosts) <= _FEW_NODES:
        return
    from launcher.service import observe  # which lines of a small run do not need

    if (backend := observe.backend_of(run)).brings_all(run.known):
        return
    asked = {node for node in nodes if isinstance(node, int)}
    if ranks is not None:
        asked &= _with(run, backend, ranks)
    if follow and len(asked) == len(run.hosts):
        output.note(told(run))
        return
    backend.bring(run.known, asked)
    if run.result is not None:
        _refresh(run, backend)
        absent = sum(not run.stream_path(node).exists() for node in asked)
        if absent:
            output.warn(f"the logs of {amounts.counted(absent, 'node')} were not followed, and no longer exist")


def _with(run: Run, backend: AnyBackend, ranks: Wanted) -> set[int]:
    if not run.stream_path(0).exists():
        _refresh(run, backend)
    events = (each for each in status.ends(run.stream_path(0)) if isinstance(each, Event))
    counts = [_count(event) for event in events if event.name == "rendezvous"]
    return nodes_of(run, ranks, counts[-1] if counts else None)


def _refresh(run: Run, backend: AnyBackend) -> None:
    try:
        backend.refresh(run.known)
    except LaunchError as error:
        output.warn(f"{backend.name}: not all logs could be fetched: {error.message}")


def _count(rendezvous: Event) -> int | None:
    ranks = rendezvous.fields.get("ranks")
    return len(ranks) if isinstance(ranks, list) else None
