"""What the user sees of a playbook's steps while they run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent.system.folding import folded
from launcher.system import amounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    Answers = dict[str, dict[str, dict[str, Any]]]
    """By step and host."""

_PATIENCE_S = 6.0
_QUIET = ("reach", "lease", "look")
"""Steps that are not shown when they end."""


class Progress:
    """The steps of one run of a playbook."""

    def __init__(self, *, shows: bool = True) -> None:
        self._shows = shows
        self.steps: set[str] = set()
        """Steps that have begun."""

        self._step, self._began, self._said = "", time.monotonic(), 0.0
        self._waiting: dict[str, float] = {}
        self._sent: dict[str, tuple[int, int]] = {}
        self._told = False
        """Whether the task itself has told what takes long in this step."""

    def enter(self, step: str, hosts: Sequence[str], answers: Answers) -> None:
        """Note that these hosts are asked for a step; `answers` are those of all steps so far."""
        self.steps.add(step)
        if step != self._step:
            self.finish(answers)
            self._waiting.clear()
            self._step, self._began, self._told = step, time.monotonic(), False
        self._waiting.update(dict.fromkeys(hosts, time.monotonic()))
        self._show(len(answers.get(step, {})))

    def answered(self, host: str, answers: Answers) -> None:
        """Note that a host is no longer waited for."""
        self._waiting.pop(host, None)
        self._sent.pop(host, None)
        self._show(len(answers.get(self._step, {})))

    def tell(self, text: str) -> None:
        """Show what the current step does now."""
        self._told = True
        output.progress(text)

    def sent(self, host: str, done: int, size: int) -> None:
        """Show how many bytes were sent to a host."""
        self._sent[host] = (done, size)
        done, size = (sum(each) for each in zip(*self._sent.values(), strict=True))
        to = host if len(self._sent) == 1 else f"{len(self._sent)} hosts"
        output.progress(f"sending {done / 1e6:.0f} of {size / 1e6:.0f} MB to {to}", (done, size))

    def _show(self, done: int) -> None:
        """Show how many hosts have answered in the current step."""
        count = done + len(self._waiting)
        output.progress(f"{self._step}: {done} of {amounts.counted(count, 'host')}", (done, count))

    def finish(self, answers: Answers) -> None:
        """Report how the current step ended."""
        if self._shows and self._step and self._step not in _QUIET:
            of_step = answers.get(self._step, {})
            good = sum(not answer.get("problem") for answer in of_step.values())
            took = time.monotonic() - self._began
            output.note(f"{self._step}: {good} of {amounts.counted(len(of_step), 'host')}, {took:.1f} s")
        self._step = ""

    def tell_waits(self) -> None:
        """Name slow hosts from time to time."""
        now = time.monotonic()
        late = [host for host, since in list(self._waiting.items()) if now - since > _PATIENCE_S]
        if late and self._step != "lease" and not self._told and now - self._said > _PATIENCE_S:
            self._said = now
            output.note(f"{self._step}: waiting for {folded(late)}")
