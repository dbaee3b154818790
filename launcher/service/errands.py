"""Requests to the backend about a run that is being followed."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent.secret_files import NOTIFY_FILE
from launcher.console import live_line
from launcher.errors import LaunchError, StorageError
from launcher.runs import cancel_notes
from launcher.service import limits
from launcher.system.question import Question

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.agent.protocol import Event
    from launcher.backends._base import AnyBackend
    from launcher.runs.outcome import Outcome
    from launcher.runs.records import Run
    from launcher.service.bringing import Bringing
    from launcher.service.fetching import Fetching
    from launcher.service.interrupts import Interrupts, Unattended
    from launcher.service.notices import Teller


class Errands:
    """Requests that run in the background."""

    def __init__(
        self, run: Run, backend: AnyBackend, fetching: Fetching | None = None, bringing: Bringing | None = None
    ) -> None:
        self._fetching, self._bringing = fetching, bringing
        self._run, self._handle, self._backend = run, run.handle, backend
        self._errands: list[tuple[str, Question[None]]] = []
        self._teller = _teller(run, backend)

    def run(self, method: str, *args: Any, asked: bool = False, **keywords: Any) -> None:
        """Send a request to the backend. A failure is only reported; following continues."""

        def ask() -> None:
            call = partial(getattr(self._backend, method), self._handle, *args, **keywords)
            if not asked:
                call()
                return
            try:
                with cancel_notes.cancelling(self._run, **keywords):
                    call()
            except StorageError as error:  # the request cannot be recorded, but can be carried out
                output.warn(error.message)
                call()

        errand = Question(ask, method)
        errand.answered(limits.READ_TIMEOUT_S)
        self._errands.append((method, errand))

    def event(self, node: int, record: Event) -> None:
        """Fetch files while a node waits for that; grant the claim again to a run that has it and was started again."""
        if self._teller is not None:
            self._teller.event(node, record)
        if self._bringing is not None:
            self._bringing.event(node, record)
        won = self._run.won
        if record.name == "claim_wanted" and won is not None and won["claim"] is None and record.fields.get("attempt"):
            from launcher.service import rival  # 8 ms; few runs are queued on several clusters

            self._errands.append(("grant", Question(lambda: rival.grant(self._run, self._backend), "grant")))
        if record.name == "outputs_ready" and self._fetching is not None:
            self._fetching.ready(self._run, node, failed=record.fields.get("result") != "success")

    def hear(self, working: Callable[[], set[int]]) -> None:
        """Report requests that failed. `working`: the nodes whose workers still run."""
        if self._fetching is not None:
            self._fetching.look(self._run, working)
        for errand in [errand for errand in self._errands if errand[1].answered(0)]:
            self._errands.remove(errand)
            try:
                errand[1].answer()
            except LaunchError as error:
                output.warn(f"{self._backend.name} cannot {errand[0]} the run: {error.message}")

    def waits(self) -> None:
        """Note that the run waits to start, perhaps again."""
        if self._teller is not None:
            self._teller.waits()

    def ended(self, outcome: Outcome) -> None:
        """Have the run's end told."""
        if self._teller is not None:
            with live_line.waiting("telling the end of the run"):
                self._teller.ended(outcome)

    def leave(self) -> None:
        """Finish what was begun, also a request to cancel the run: it is followed no longer."""
        limit = time.monotonic() + limits.LEAVE_S
        for errand in [errand for method, errand in self._errands if method == "cancel"]:
            errand.answered(max(0.0, limit - time.monotonic()))
        if self._teller is not None:
            self._teller.leave()

    def release(self, interrupts: Interrupts | Unattended) -> None:
        """Have the backend release what the run still holds. A stop request skips the wait for that."""
        stops, errand = interrupts.stops, Question(lambda: self._backend.release(self._handle), "release")
        with live_line.waiting(f"waiting for {self._backend.name} to release what the run holds"):
            while not errand.answered(limits.READ_TIMEOUT_S):
                if interrupts.stops != stops:
                    return
        try:
            errand.answer()
        except LaunchError as error:
            output.warn(f"{self._backend.name} may still hold something of the run: {error.message}")


def _teller(run: Run, backend: AnyBackend) -> Teller | None:
    if not (run.path / NOTIFY_FILE).exists():
        return None
    from launcher.service.notices import teller_of  # few runs need it

    return teller_of(run, backend)
