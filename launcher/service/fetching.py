"""`--fetch`: the files that a launch fetches at the end of its run."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.console import live_line
from launcher.errors import LaunchError
from launcher.service import fetch
from launcher.system.question import Question

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.results.files import Fetched
    from launcher.runs.records import Run

_LOOK_S = 0.2
_NODE = 0


class Fetching:
    """Fetches once: as soon as a node waits for it, else when the run has ended."""

    def __init__(self, patterns: Sequence[str], to: str) -> None:
        self._patterns, self._to = patterns, to
        self._begun: Question[Fetched] | None = None
        self.result: Fetched | None = None
        self.error: LaunchError | None = None

    def begin(self, run: Run) -> None:
        """Begin in the background, if it has not begun."""
        self._begun = self._begun or Question(lambda: self._fetch(run), "fetch")

    def finish(self, run: Run) -> None:
        """Wait for the end; sets `result` or `error`."""
        self.begin(run)
        assert self._begun is not None
        while not self._begun.answered(_LOOK_S):
            pass
        try:
            self.result = self._begun.answer()
        except LaunchError as error:
            self.error = error

    def give_up(self, run: Run) -> None:
        """Let the node's agent end without it, as far as it can be reached."""
        if self._begun is None:
            with suppress(LaunchError):
                fetch.release(run, _NODE)

    def _fetch(self, run: Run) -> Fetched:
        with live_line.waiting(f"fetching from {run.id}"):
            try:
                return fetch.fetch(run, self._patterns, fetch.target(run, self._to), [_NODE])
            finally:
                with suppress(LaunchError):
                    fetch.release(run, _NODE)
