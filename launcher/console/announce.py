"""Announcements on stderr about a run that is followed, besides the workers' own lines."""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent.failures import Failure, again
from launcher.agent.protocol import Event
from launcher.agent.system.folding import folded
from launcher.console import summary
from launcher.console.gathered import Gathered
from launcher.console.node_warnings import NodeWarnings
from launcher.console.places import Places
from launcher.console.start_line import StartLine
from launcher.runs.outcome import debugged
from launcher.runs.reader import hang_text
from launcher.runs.sources import JOB_OUTPUT, Source
from launcher.system import amounts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.agent.protocol import Foreign
    from launcher.console.worker_output import WorkerOutput
    from launcher.runs.outcome import Outcome

_OLD_NEWS = (
    r"srun: (error: .* Exited with exit code|Job step aborted: Waiting|forcing job termination|got SIGCONT)"
    r"|slurmstepd\S*: error: \*\*\* (STEP .*|JOB \S+ ON \S+ CANCELLED AT \S+) \*\*\*$"
)
"""Scheduler messages about ends that agents report better. Few runs have any, and to compile it takes 4 ms."""

PATIENCE_S = 5.0
"""A shorter wait is not announced."""

UNANSWERED_S = 60.0
"""How long a backend may fail to report the run's state: a restart of its service takes less."""

_KNOWN = 10_000
"""More than a run has to announce; each entry takes a hundred bytes."""

UNREACHED_S = 20.0
"""How long a node may be unreachable: a broken connection is restored sooner."""

_BACKEND = -2
"""Stands for the backend where a node is expected."""


class Announcer:
    """Announces each event once, however many nodes report it."""

    def __init__(
        self,
        hosts: Sequence[str],
        workers: WorkerOutput,
        *,
        backend: str = "the cluster",
        explain: bool = False,
        places: bool = False,
        asked_for: int = 0,
        is_cancelled: Callable[[], bool] = lambda: False,
        more_cpus: str = "",
    ) -> None:
        """`asked_for`: the last attempt started by the user, or by us after a lost host; others are a scheduler's.

        `more_cpus`: the option that gives a node more CPUs, if there is one.
        `places`: show where the nodes are once they have met, as the plan does not know.
        """
        self._is_cancelled = is_cancelled
        self._asked_for = asked_for
        self._hosts = hosts
        self._workers = workers
        self._explain, self._explained = explain, False
        self._where = Places(shown=places)

        self._said: dict[int, None] = {}
        self._waits = Gathered[str](PATIENCE_S)
        self._warnings = NodeWarnings(len(hosts), more_cpus)
        self._unreached: dict[int, float] = {}
        self._progress = StartLine(backend, hosts)

    def record(self, node: Source, record: Event | Foreign) -> None:
        """Announce an event or a foreign line, if it matters to the user."""
        if not isinstance(record, Event):
            self._workers.end_line()
            old_news = node == JOB_OUTPUT and re.match(_OLD_NEWS, record.data.decode(errors="replace"))
            output.foreign(str(node), record.data, important=not old_news)
            return
        if node == JOB_OUTPUT:  # a line that only looks like an agent's
            return
        fields = record.fields
        self._progress.heard(node, record.name, fields)
        self._gather(node, record.name, fields, time.monotonic())
        self._fabric(node, record.name, fields)
        if record.name == "contract":
            self._contract(fields)
        if record.name == "agent_started" and fields.get("attempt"):
            why, attempt = again(fields.get("after")), fields["attempt"]
            who = "" if isinstance(attempt, int) and attempt <= self._asked_for else " by the scheduler"
            self._once(f"started again{who}{why}, attempt {attempt}", f"attempt {attempt}")
        elif record.name == "rendezvous":
            self._started(node, fields)
        elif record.name in ("restart", "done"):
            self._again(record.name, fields)
        elif record.name == "debugger":
            self._workers.finish_prompt()
            self._note(f"{debugged(fields)}; leave it with q")
        elif record.name == "stopping":
            reason = fields.get("reason")  # an agent cannot tell cancellation from preemption
            self._once(
                f"stopping: {Failure.CANCELLED if reason == Failure.PREEMPTED and self._is_cancelled() else reason}"
            )
        elif record.name in ("hang", "flight_recorder"):
            self._odd(record.name, fields)

    def _odd(self, event: str, fields: dict[str, Any]) -> None:
        """Announce what went wrong without ending the run, and where more of it is."""
        if event == "flight_recorder":
            self._once(f"flight recorder: {amounts.listed(fields.get('files') or fields.get('problems') or [])}")
            return
        self._workers.end_line()
        output.warn(hang_text(fields))

    def _gather(self, node: int, event: str, fields: dict[str, Any], now: float) -> None:
        """Take what many nodes may report alike: their waits and warnings."""
        if event in ("waiting", "rendezvous"):
            self._waits.forget(node)
        if event == "waiting" and "workers" not in fields:  # the live line names the wait for workers
            limit = fields.get("limit_s")
            until = f" for at most {limit:g} s" if isinstance(limit, (int, float)) else ""
            self._waits.add(f"for {fields.get('what')}{until}", node, now)
        self._warnings.heard(node, event, fields, now)
        self._warn(now)

    def _started(self, node: int, fields: dict[str, Any]) -> None:
        """Announce that the nodes have met, and where they are if the plan did not know that."""
        where = f"{fields.get('master_addr')}:{fields.get('master_port')}"
        nodes = amounts.counted(fields.get("nodes"), "node")
        ranks = amounts.counted(fields.get("world_size"), "rank")
        role = f"role {name} " if (name := fields.get("role")) else ""
        self._once(f"{role}started: {nodes}, {ranks} (master {where})")
        world = fields.get("world_size")
        if not role and self._is_new(f"world {world}"):  # with roles it is not known how many ranks the others have
            self._missing(world)
        if table := self._where.met(node, fields):
            self._note(*table)

    def _missing(self, world: object) -> None:
        """Warn if none of the wanted ranks exists, which the plan may not have known."""
        ranks = self._workers.ranks
        if ranks and isinstance(world, int) and min(ranks) >= world:
            self._workers.end_line()
            output.warn(f"{summary.missing_ranks(ranks, world)}, so no line of its workers is shown")

    def _again(self, event: str, fields: dict[str, Any]) -> None:
        """Announce that workers start again: by their agents, or together with them by the scheduler."""
        cause = fields.get("cause")
        why = f": {cause.get('message')}" if isinstance(cause, dict) else ""
        if event == "restart":
            role = f"role {name} " if (name := fields.get("role")) else ""
            count = f"{role}restart {fields.get('restarts')}"
            self._once(f"{count} of {fields.get('max_restarts')}{why}", count)
        elif fields.get("result") == "lost":
            self._once(f"ending, to be started again{why}", f"lost {fields.get('attempt')}")

    def silent(self, node: int, for_s: float) -> None:
        """Announce a node that sends nothing although its agent runs."""
        since = f"sent nothing for {for_s // 10 * 10:.0f} s, though"
        stuck = "disk, stream or connection is stuck; the run continues"
        one, several = f"has {since} its agent runs: its {stuck}", f"have {since} their agents run: their {stuck}"
        self._warnings.notes.add((one, several), node, time.monotonic())

    def asked(self, backend: str, refusal: str) -> None:
        """Note that the backend could not report the run's state or, without a `refusal`, that it could."""
        if not refusal:
            self._waits.forget(_BACKEND)
        elif not self._waits.has(_BACKEND):
            text = f"for {UNANSWERED_S:.0f} s {backend} does not tell how the run is: {refusal}"
            self._waits.add(text, _BACKEND, time.monotonic() + UNANSWERED_S - PATIENCE_S)

    def reached(self, node: int, refusal: str) -> None:
        """Note that a node could not be reached or, without a `refusal`, that it could. Announces each change once."""
        if not refusal:
            if self._unreached.pop(node, 0.0) < 0:
                self._warnings.notes.add(("is reached again", "are reached again"), node, time.monotonic())
            return
        since = self._unreached.setdefault(node, time.monotonic())
        if 0 <= since <= time.monotonic() - UNREACHED_S:
            self._unreached[node] = -1.0
            text = f"not been reached for {UNREACHED_S:.0f} s: {refusal}"
            self._warnings.notes.add((f"has {text}", f"have {text}"), node, time.monotonic())

    def caught_up(self, world: object) -> None:
        """Show what is waited for, after events of which nothing was shown. `world`: how many ranks they named last."""
        self._progress.show()
        self._missing(world)

    def ending(self) -> None:
        """Note that the backend is asked to end the run."""
        self._progress.ending()

    def state(self, outcome: Outcome) -> None:
        """Announce why a run does not start."""
        self._progress.state(outcome)
        if outcome.state == "pending" and outcome.detail:
            self._once(f"pending: {outcome.detail}")

    def tick(self, now: float) -> None:
        """Announce waits that have become long; `now` as from `time.monotonic`."""
        for text, nodes in self._waits.due(now):
            who = f"{self._places(nodes)} wait{'s' * (len(nodes) == 1)} "
            self._once((who if nodes != [_BACKEND] else "") + text, text)
        self._warn(now)
        self._progress.tick(now)

    def close(self) -> None:
        """Print what still waits for other nodes to send the same."""
        self._warn(math.inf)

    def _warn(self, now: float) -> None:
        for (one, several), nodes in self._warnings.notes.due(now):
            self._note(f"{self._places(nodes)} {one if len(nodes) == 1 else several}")
        for text, nodes in self._warnings.due(now):
            self._workers.end_line()
            output.warn(f"{self._places(nodes)}: {text}")

    def _fabric(self, node: int, event: str, fields: dict[str, Any]) -> None:
        """Announce notes, and on request variables and threads. Identical ones are announced for one node only."""
        if event == "agent_started":
            self._where.hosts[node] = str(fields.get("host") or "")
        if event == "rendezvous" and self._explain and not self._explained:
            self._once("fabric: nothing to choose, as all workers are on one host")
        if event == "host_facts" and self._explain and isinstance(threads := fields.get("threads"), dict):
            said = f"OMP_NUM_THREADS={threads.get('value')}" if threads.get("value") else "OMP_NUM_THREADS is not set"
            self._once(
                f"threads: {self._place(node)}: {said} ({threads.get('reason')})", f"{said} {threads.get('reason')}"
            )
        if event != "fabric":
            return
        self._explained = True
        for note in fields.get("notes") or ():
            self._workers.end_line()
            self._once(f"{self._place(node)}: {note}", str(note))
        if not self._explain:
            return
        reached = ", ".join(fields.get("interfaces") or ()) or "no address"
        self._once(f"fabric: {self._place(node)} is reached at {reached}", f"reached at {reached}")
        for variable in fields.get("variables") or ():
            said = "{name}={value} ({source}: {reason})".format(**variable)
            self._once(f"fabric: {self._place(node)}: {said}", said)
        if not fields.get("variables"):
            self._once("fabric: no variable is needed: NCCL, gloo and UCX choose right by themselves")

    def _contract(self, fields: dict[str, Any]) -> None:
        """Announce on request what the contract gives a rank."""
        for variable in fields.get("variables") or () if self._explain else ():
            said = "{name}={value} ({reason})".format(**variable)
            self._once(f"{fields.get('contract')}: rank {fields.get('rank')}: {said}", said)

    def _place(self, node: int) -> str:
        return f"node {node} ({self._host(node)})"

    def _host(self, node: int) -> str:
        return self._where.hosts.get(node) or (self._hosts[node] if node < len(self._hosts) else "?")

    def _places(self, nodes: Sequence[int]) -> str:
        """The node, or how many, with their hosts."""
        if len(nodes) == 1:
            return self._place(nodes[0])
        hosts = dict.fromkeys(self._host(node) for node in nodes)
        return f"{len(nodes)} nodes ({folded(hosts)})"

    def _note(self, *lines: str) -> None:
        self._workers.end_line()
        output.note(*lines)

    def _once(self, text: str, key: str | None = None) -> None:
        if self._is_new(key or text):
            self._note(text)

    def _is_new(self, key: str) -> bool:
        """Whether this was not announced lately. Hashes are kept, as a node may send any number of long messages."""
        known = hash(key)  # of 64 bits, with a secret of this process
        if known in self._said:
            return False
        self._said[known] = None
        if len(self._said) > _KNOWN:
            del self._said[next(iter(self._said))]
        return True
