"""Makes a run end when it has to: after Ctrl-C, when nodes are left behind, when node 0 comes back too late."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launcher import output
from launcher.agent.failures import may_come_back
from launcher.runs.outcome import TOO_LATE
from launcher.service import limits

if TYPE_CHECKING:
    from launcher.console.worker_output import WorkerOutput
    from launcher.runs.node_report import NodeReport
    from launcher.runs.outcome import Outcome, RunReport
    from launcher.runs.records import Run
    from launcher.service.errands import Errands
    from launcher.service.interrupts import Interrupts, Unattended
    from launcher.service.node_watch import NodeWatch


class Ending:
    """Cancels the run, and kills it if that does not help."""

    def __init__(
        self,
        run: Run,
        report: RunReport,
        nodes: NodeWatch,
        errands: Errands,
        *,
        interrupts: Interrupts | Unattended,
        workers: WorkerOutput,
    ) -> None:
        self._run, self._report, self._nodes, self._errands = run, report, nodes, errands
        self._interrupts, self._workers = interrupts, workers
        self._cancel_requested: float | None = None
        self._stops_obeyed = 0
        self._hanging_since: float | None = None
        self._deadline: float | None = None
        """When to use force; after that, when to give up."""

        self._forced = self.given_up = False

    def asked(self) -> float | None:
        """When cancellation was requested, here or by another process; None: it was not."""
        return self._cancel_requested or self._run.cancel_requested

    def pause(self) -> None:
        """Restart the wait for hanging nodes: while nothing is read, silence proves nothing."""
        self._hanging_since = None

    def obey(self, now: float) -> None:
        """Handle signals that the launcher has received."""
        for signum in self._interrupts.for_workers():
            self._errands.run("signal", signum)
        if self._interrupts.stops == self._stops_obeyed:
            return
        first, self._stops_obeyed = self._stops_obeyed == 0, self._interrupts.stops
        if first and self._stops_obeyed == 1:
            self._workers.end_line()
            output.note(f"cancelling {self._run.id}; once more to kill it")
            self._cancel(now, force=False, asked=True)
        elif not self._forced:
            self._workers.end_line()
            output.note(f"killing {self._run.id}")
            self._cancel(now, force=True, asked=True)

    def enforce(self, now: float, outcome: Outcome) -> None:
        """Cancel a run that has to end, then kill it, then give up."""
        gone = any(map(self._is_missed, range(len(self._nodes.alive))))
        failing = gone or any(self._ends_the_run(node) for node in outcome.nodes)
        if not (self._report.all_needed and failing):
            self._hanging_since = None
        else:
            self._hanging_since = self._hanging_since or now
        if self._deadline is None:
            if not gone or self._others_know():
                limit, told = limits.HANG_S, f"{limits.HANG_S:.0f} s after one failed"
            else:
                limit, told = limits.UNAWARE_S, "without it"
            if outcome.comes_too_late:
                output.note(TOO_LATE)
                self._cancel(now, force=False, asked=False)
            elif self._hanging_since is not None and now - self._hanging_since > limit:
                output.warn(f"other nodes still run {told}; ending them")
                self._cancel(now, force=False, asked=False)
        elif now > self._deadline:
            if self._forced:
                self.given_up = True
            else:
                output.warn(f"{self._run.id} has not ended within its grace time; killing it")
                self._cancel(now, force=True, asked=False)

    def _is_missed(self, node: int) -> bool:
        """Whether the node has exited without a result, before its part of the run was done."""
        ended = self._nodes.alive[node] == "ended" and not self._nodes.done(node)
        return ended and not self._report.spares(self._report.nodes[node])

    def _others_know(self) -> bool:
        """Whether all remaining agents are shutting down, as they have noticed that one has exited."""
        left = (node for node in self._nodes.known().nodes if node.result is None)
        left = (node for node in left if self._nodes.alive[node.node] != "ended" and self._nodes.hears(node.node))
        return all(node.failing or node.stopping for node in left)

    def _ends_the_run(self, node: NodeReport) -> bool:
        """Whether the others have nothing to wait for. A scheduler that restarts runs notices a lost node itself."""
        lost = self._report.may_start_again and may_come_back(node.cause)
        lost = lost or self._report.spares(node)
        return node.failing and not lost and (node.result == "failed" or not self._report.may_start_again)

    def _cancel(self, now: float, *, force: bool, asked: bool) -> None:
        if asked:
            self._cancel_requested = time.time()
        self._nodes.ending()
        self._errands.run("cancel", asked=asked, force=force)
        self._forced = force
        self._deadline = now + (limits.GIVE_UP_S if force else limits.FORCE_S + self._run.grace_s)
        self._nodes.look_soon(now)
