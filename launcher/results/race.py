"""Results about runs that are queued on several clusters."""

from __future__ import annotations

from typing import Literal, TypedDict

from launcher.results.cluster import ExpectedStart  # noqa: TC001 - schemas are made from the types


class Holder(TypedDict):
    """The try that has the claim of its run."""

    run: str
    cluster: str
    time: float
    """Unix seconds; other times likewise."""


class AskedCluster(TypedDict):
    """A cluster that was asked when the run would start there."""

    cluster: str
    asked_at: float
    start: ExpectedStart | None
    """Null without an answer, or if it was not asked."""

    problem: str | None
    """Why it cannot take the job, or did not answer."""


class Try(TypedDict):
    """One cluster on which the run was queued."""

    cluster: str
    run: str
    """Its own id, for that cluster's commands."""

    tried_at: float
    """When it was submitted."""

    granted_at: float | None
    """When it got the claim; null if it did not."""

    cancelled_at: float | None
    """When it was cancelled, as another one had the claim or the run was cancelled, or when the run was moved away."""

    ended_at: float | None
    """When nothing of it was left; null for the one that has the claim."""

    problem: str | None
    """Why it could not be submitted, or ended without the claim."""


class Race(TypedDict):
    """How a run on several clusters was started."""

    start: Literal["soonest", "first", "move"]
    """`move`: on one cluster at first, then on others."""

    limit: int
    """The largest number of clusters on which it is queued."""

    claim: str | None
    """The place where tries claim the run; null: the launcher grants the claim."""

    wait_s: float
    """How long a try that could start waits for the claim."""

    asked: list[AskedCluster]
    tries: list[Try]


class Moved(TypedDict):
    """A run that continues on another cluster."""

    run: str
    cluster: str
    attempt: int


class MaybeRace(TypedDict, total=False):
    """What `status` adds to a run."""

    race: Race
    """Only of a run that was queued on several clusters."""
