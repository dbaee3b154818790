"""Which of several clusters can take a job, and when it would start there."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher import output
from launcher.errors import LaunchError, RequestError, SpecError
from launcher.runs import directories, races
from launcher.service import clusters, launch, request
from launcher.service.rival import say
from launcher.settings import config
from launcher.settings.options import JobOptions
from launcher.spec import parse_duration
from launcher.system import listener
from launcher.system.question import Question

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from launcher.results.cluster import ExpectedStart
    from launcher.results.race import AskedCluster
    from launcher.service.launch import Launch
    from launcher.settings.config import Config

_NOW_S = 5.0
"""A job that is expected to start within this time can start now."""


class Candidates(NamedTuple):
    """The clusters that can take the job, in the order in which they were named."""

    launches: tuple[Launch, ...]
    asked: tuple[AskedCluster, ...]
    """All clusters that were named, the ones that cannot take it with the problem."""


def planned(values: Mapping[str, Any], on: str, settings: Config) -> Candidates:
    """Plan the job on each cluster. Raises `RequestError` if none can take it, or their worlds differ in size."""
    wanted = [] if on == request.ANY else [name.strip() for name in on.split(",")]
    found: list[Launch] = []
    asked: list[AskedCluster] = []
    errors: dict[str, LaunchError] = {}
    told: dict[tuple[str, str], None] = {}
    for name in dict.fromkeys(clusters.known(settings, wanted)):
        with listener.told_to(lambda kind, text: told.setdefault((kind, text))):
            try:
                found.append(launch.planned(request.resolve(None, {**values, "cluster": name}, settings)))
            except LaunchError as error:
                errors[name] = error
        problem = errors[name].message if name in errors else None
        asked.append({"cluster": name, "asked_at": round(time.time(), 3), "start": None, "problem": problem})
    for kind, text in told:  # one of all clusters is printed once
        say(kind, text)
    _tell(found, errors)
    _check(found)
    return Candidates(tuple(found), tuple(asked))


def _tell(found: Sequence[Launch], errors: Mapping[str, LaunchError]) -> None:
    """Report the clusters that cannot take the job; raises if none can."""
    reasons = {error.message for error in errors.values()}
    if not found and len(reasons) == 1:
        raise next(iter(errors.values()))
    if not found:
        told = "; ".join(f"{name}: {error.message}" for name, error in errors.items())
        raise RequestError(f"no cluster can take the job: {told}", hint="distlaunch clusters shows what they have")
    for name, error in errors.items():
        output.warn(f"{name} cannot take the job: {error.message}")


def _check(found: Sequence[Launch]) -> None:
    """Refuse what a run on several clusters cannot be."""
    sizes = {}
    for each in found:
        cluster = each.request.cluster or ""
        if getattr(each.plan, "tasks", ()):
            raise SpecError("a job array cannot be queued on several clusters", hint="name one of them")
        if not each.request.backend.has_outputs:
            raise SpecError(f"{cluster}: {each.request.backend_name} cannot be one of several clusters")
        counts = [node.workers for node in each.plan.nodes]
        if None not in counts:
            sizes[cluster] = sum(count or 0 for count in counts)
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise SpecError(
            f"the run would have another world size on each cluster: {told}",
            hint="--workers N asks all of them for the same one",
        )


def estimated(found: Candidates) -> Candidates:
    """Ask all clusters at once when the job would start there, for at most `clusters.LIMIT_S`."""
    questions = {}
    for each in found.launches:
        with listener.told_to(lambda *_: None):
            questions[each.request.cluster] = Question(lambda each=each: _start(each), f"start {each.request.cluster}")  # type: ignore[misc]
    limit = time.monotonic() + clusters.LIMIT_S
    asked: list[AskedCluster] = []
    for about in found.asked:
        question = questions.get(about["cluster"])
        if question is not None and question.answered(max(0.0, limit - time.monotonic())):
            try:
                about = {**about, "start": question.answer()}  # noqa: PLW2901
            except LaunchError as error:
                about = {**about, "problem": error.message}  # noqa: PLW2901
        elif question is not None:
            about = {**about, "problem": f"no answer within {clusters.LIMIT_S:.0f} s"}  # noqa: PLW2901
        asked.append(about)
    return found._replace(asked=tuple(asked))


def _start(each: Launch) -> ExpectedStart | None:
    backend = each.request.backend
    if not backend.has_outlook:
        return None
    start: ExpectedStart = backend.outlook(each.request.job, None).start
    return start


def starts_now(found: Candidates) -> Launch | None:
    """The first launch whose cluster expects to start it now."""
    for each in found.launches:
        at = _expected(found, each)
        if at is not None and at - time.time() < _NOW_S:
            return each
    return None


def best(found: Candidates, limit: int) -> tuple[Launch, ...]:
    """At most `limit` launches, those that are expected to start first; without an estimate, in the order given."""
    reached = [each for each in found.launches if not _problem(found, each)] or list(found.launches)
    return tuple(sorted(reached, key=lambda each: _expected(found, each) or float("inf"))[:limit])


def _about(found: Candidates, each: Launch) -> AskedCluster:
    return next(about for about in found.asked if about["cluster"] == each.request.cluster)


def _problem(found: Candidates, each: Launch) -> str | None:
    return _about(found, each)["problem"]


def _expected(found: Candidates, each: Launch) -> float | None:
    start = _about(found, each)["start"]
    return start["at"] if start else None


class Claiming(NamedTuple):
    """How tries get the claim."""

    place: str | None
    wait_s: float


def claiming(values: Mapping[str, Any], settings: Config) -> Claiming:
    """The settings for that."""
    job = config.build(JobOptions, settings.resolve(JobOptions, flags=request.of(JobOptions, values)))
    return Claiming(job.claim or None, parse_duration(job.claim_wait, "claim-wait"))


def as_try(each: Launch, path: Path, claim: Claiming) -> Launch:
    """The launch as one try of the run at `path`: its agents wait for the claim."""
    about = {"wait_s": claim.wait_s, "race": path.name}
    if claim.place:
        about["place"] = claim.place
    asked = each.request
    asked = replace(asked, job=replace(asked.job, agents={**asked.job.agents, "claim": about}))
    own = path / races.TRIES / directories.new_id(asked.job.name)
    return each._replace(request=asked, plan=asked.plan(own), path=own)
