"""Exceptions that end a wait in the worker group's process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..messages import Verdict


class StopRequestedError(Exception):
    """The wait is aborted: the run is being stopped, or another node has ended it."""


class PeerEndedError(Exception):
    """Another node ended the run."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.get("message", verdict["kind"]))
        self.verdict = verdict


class RestartRequestedError(Exception):
    """A node has requested a restart: what this one waits for in this round will not come."""


class RendezvousError(Exception):
    """The rendezvous failed."""


class NotNeededError(Exception):
    """The run was over before this node joined."""
