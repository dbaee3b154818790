"""Notices that this node's workers are silent, answers the other nodes, and on node 0 decides whether the run hangs."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, cast

from ..failures import Failure
from ..stream.writer import Writer
from .children import ServerProcess
from .life import Life
from .outcome import Outcome
from .place import Place
from .stacks import Stacks
from .workers import Workers

if TYPE_CHECKING:
    from ..hang_messages import Act, GroupToAgent
    from ..messages import Cause
    from ..stacks.judging import Hang
    from ..stacks.stack import Stack

WARN, END, RESTART = "warn", "end", "restart"
"""What `on_hang` may be."""

_LOOKS = 10
_LOOK_S = 10.0
_NEVER = float("inf")


class Watchdog:
    """Looks a few times in `hang_after_s` whether ranks have told anything; all else is done only if there was none."""

    def __init__(
        self, place: Place, out: Writer, *, server: ServerProcess, workers: Workers, stacks: Stacks, outcome: Outcome
    ) -> None:
        self._place, self._out, self._outcome = place, out, outcome
        self._server, self._workers, self._stacks = server, workers, stacks
        self._look_at = time.monotonic() if self._after_s else float("inf")
        self._life = Life(place.scratch.path, workers)
        self._since = time.monotonic()
        self._quiet: Optional[bool] = None
        self._next_at = 0.0
        """When a hang may be reported: not until there was output since the last one. If something was done about it,
        not while workers may still be ending."""

        self.hang: Optional[Dict[str, Any]] = None
        """What was reported, and empty once there is output: for readers to whom the event is too far away."""

    @property
    def _after_s(self) -> float:
        job = self._place.job
        silent = job.debug is not None or job.wants_keyboard  # it may wait for a person
        return 0.0 if silent else job.hang_after_s or 0.0

    def patience(self, now: float) -> float:
        """Seconds until `look` must be called again."""
        return min(self._look_at - now, self._stacks.patience())

    def attend(self, now: float) -> None:
        """Call this once per turn of the loop: looks for output, if it is time to, and tells the other nodes."""
        self._stacks.attend()
        if now < self._look_at:
            return
        self._look_at = now + min(_LOOK_S, self._after_s / _LOOKS)
        running = bool(self._workers.running())
        if self._life.has_changed() or not self._workers:
            self._life.note()
            self._since = now
        silent_s = now - self._since
        quiet = bool(self._workers) and (silent_s >= self._after_s if running else silent_s > 0)
        if quiet != self._quiet:
            self._quiet, self.hang = quiet, self.hang and {}
            self._next_at = 0.0 if self._next_at == _NEVER else self._next_at
            self._server.group.send({"quiet": quiet})

    def hear(self, message: GroupToAgent) -> None:
        """Answer a request of the worker group's process."""
        if "stacks_asked" in message:
            number, recorder = message["stacks_asked"], message["recorder"]
            self._stacks.take(
                lambda groups: self._stacks.dumps.take(recorder, lambda flight: self._answer(number, groups, flight))
            )
        elif "samples" in message:
            self._judge(message)
        elif "moves" in message:
            self._since, self._quiet = time.monotonic(), None  # as if a worker of this node had written
        elif message["act"]["rank"] in (worker.about["rank"] for worker in self._workers.running()):
            self._stacks.dumps.take(message["recorder"], lambda _: self._act(message["act"]))

    def _answer(self, number: int, groups: List[Stack], flight: Optional[Dict[str, Any]]) -> None:
        from ..stacks import usage  # few runs are asked

        pids = {worker.about["rank"]: worker.about["pid"] for worker in self._workers.running()}
        by_pid = usage.of_each(pids.values())
        used = {rank: by_pid[pid] for rank, pid in pids.items()}
        about = {"number": number, "host": self._place.host, "role": self._place.job.role}
        answer: Dict[str, Any] = {**about, "groups": groups, "used": used}
        answer.update({"flight": flight} if flight else {})
        self._server.group.send({"stacks": answer})

    def _judge(self, message: GroupToAgent) -> None:
        from ..stacks import judging

        first, second = map(judging.sample, message["samples"])
        hang = judging.judge(first, second, message["between_s"])
        moves = self._life.has_changed()  # since the last look: a worker has written, or ended
        if hang is None or not self._quiet or moves or time.monotonic() < self._next_at:
            return
        self._next_at = _NEVER
        silent_s = round(time.monotonic() - self._since, 1)
        action = self._place.job.on_hang
        about = {"silent_s": silent_s, "odd": hang.odd, "message": hang.message}
        self._out.event("hang", **about, groups=hang.groups, action=action)
        self.hang = {"time": round(time.time(), 3), **about}
        if action in (END, RESTART):
            self._next_at = time.monotonic() + self._after_s + self._place.job.grace_s
            self._server.group.send({"act": self._decided(hang, second.hosts, silent_s, final=action == END)})

    def _decided(self, hang: Hang, hosts: Dict[int, str], silent_s: float, *, final: bool) -> Act:
        """The rank that is to fail, with the hang as the cause: all nodes then end or restart as after a failure."""
        odd = hang.odd[0] if hang.odd else None
        why = self._outcome.analysis.of_node(f"no progress for {silent_s:.0f} s: {hang.message}", Failure.NO_PROGRESS)
        why["rank"], why["host"] = odd, hosts.get(odd, why["host"]) if odd is not None else None
        why["node"] = None
        return {"rank": min(hosts) if odd is None else odd, "cause": {**why}, "final": final}

    def _act(self, act: Act) -> None:
        """Kill that worker, or another one if it is in an uninterruptible wait: no signal ends that."""
        from ..stacks import dump

        workers = [worker.about for worker in self._workers.running()]
        if act["rank"] not in (about["rank"] for about in workers):
            return
        self._outcome.hang, self._outcome.final = cast("Cause", act["cause"]), act["final"]
        workers.sort(
            key=lambda about: (
                dump.status(about["pid"]).get("State", "").startswith("D"),
                about["rank"] != act["rank"],
            )
        )
        self._server.signal_group(workers[0]["rank"], signal.SIGKILL)
