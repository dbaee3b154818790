"""Which of several clusters can take a job, and when it would start there."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent.named_tuple import NamedTuple
from launcher.errors import LaunchError, RequestError, SpecError
from launcher.runs import directories, races
from launcher.service import clusters, launch, request
from launcher.service.rival import say
from launcher.settings import config
from launcher.settings.option import not_below, one_of
from launcher.settings.options import JobOptions
from launcher.spec import parse_duration
from launcher.system import listener
from launcher.system.dataclass import replace
from launcher.system.question import Question

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from launcher.backends._outlook import Outlook
    from launcher.results.race import AskedCluster, Race
    from launcher.service.launch import Launch
    from launcher.settings.config import Config

_NOW_S = 5.0
"""A job that is expected to start within this time can start now."""


class Candidates(NamedTuple):
    """The clusters that can take the job, in the order in which they were named."""

    launches: tuple[Launch, ...]
    asked: tuple[AskedCluster, ...]
    """All clusters that were named, the ones that cannot take it with the problem."""


class Entry(NamedTuple):
    """What is to be submitted, and where."""

    alone: Launch | None
    """To the only cluster that can take the job, or to one that can start it now; None: all `tries`."""

    path: Path
    """The future run's directory; its name is the run's id."""

    about: Race
    tries: tuple[Launch, ...]


def entered(values: Mapping[str, Any], settings: Config, *, waits: bool = False) -> Entry:
    """Plan the job on the clusters that `values["cluster"]` names, and choose. Writes nothing.

    `values`: as for `request.resolve`, and `start` and `race`, the most clusters on which it is queued. `waits`: the
    caller waits until it is decided even if nothing follows the run. Raises `RequestError` if no cluster can take it,
    or if nothing would decide which of them gets it.
    """
    start, limit = values.get("start") or "soonest", 3 if values.get("race") is None else int(values["race"])
    one_of("start", "soonest", "first")(start)
    not_below("race", 1)(limit)
    found = _planned(values, values["cluster"], settings)
    options, now = found.launches[0].request.options, None
    if start == "soonest" and len(found.launches) > 1:
        found = _estimated(found)
        if (now := _starts_now(found)) is not None:
            output.note(f"{now.request.cluster} can start it now")
    best = _best(found, limit)
    job = config.build(JobOptions, settings.resolve(JobOptions, flags=request.of(JobOptions, values)))
    path = directories.root(best[0].request.runs_root) / directories.new_id(best[0].request.job.name)
    about: Race = {
        "start": "first" if start == "first" else "soonest", "limit": limit, "claim": job.claim or None,
        "wait_s": parse_duration(job.claim_wait, "claim-wait"), "asked": list(found.asked), "tries": [],
    }  # fmt: skip
    if now is not None or len(best) == 1:
        return Entry(now or best[0], path, about, ())
    if options.detach and not waits and not job.claim:
        raise RequestError(
            f"with --detach, nothing decides which of {', '.join(str(each.request.cluster) for each in best)} gets it",
            hint="leave --detach out, name one cluster, or give a --claim DIR that all of them reach",
        )
    return Entry(None, path, about, tuple(_as_try(each, path, about) for each in best))


def _planned(values: Mapping[str, Any], on: str, settings: Config) -> Candidates:
    """Plan the job on each cluster. Raises `RequestError` if none can take it, or their worlds differ in size."""
    wanted = [] if on == request.ANY else [name.strip() for name in on.split(",")]
    found: list[Launch] = []
    asked: list[AskedCluster] = []
    errors: dict[str, LaunchError] = {}
    told: dict[tuple[str, ...], None] = {}
    for name in dict.fromkeys(clusters.known(settings, wanted)):
        with listener.lines_told_to(lambda *message: told.setdefault(message)):
            try:
                found.append(launch.planned(request.resolve(None, {**values, "cluster": name}, settings)))
            except LaunchError as error:
                errors[name] = error
        problem = errors[name].message if name in errors else None
        asked.append({"cluster": name, "asked_at": round(time.time(), 3), "start": None, "problem": problem})
    for message in told:  # one of all clusters is printed once
        say(*message)
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
    for name in ("dry_run", "render_to", "unique"):
        if getattr(found[0].request.options, name):
            text = name.replace("_", "-")
            raise SpecError(f"--{text} and several clusters exclude each other", hint="name one of them")
    sizes = {}
    for each in found:
        cluster = each.request.cluster or ""
        if each.plan.tasks:
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


def _estimated(found: Candidates) -> Candidates:
    """Ask all clusters at once when the job would start there, for at most `clusters.LIMIT_S`."""
    questions = {}
    for each in found.launches:
        with listener.told_to(lambda *_: None):
            questions[each.request.cluster] = Question(partial(_outlook, each), f"start {each.request.cluster}")
    limit = time.monotonic() + clusters.LIMIT_S
    asked: list[AskedCluster] = []
    databases: dict[str, dict[str, str]] = {}
    for about in found.asked:
        question = questions.get(about["cluster"])
        if question is not None and question.answered(max(0.0, limit - time.monotonic())):
            try:
                if (outlook := question.answer()) is not None:
                    about = {**about, "start": outlook.start}  # noqa: PLW2901
                    databases.setdefault(outlook.database[0], {})[about["cluster"]] = outlook.database[1]
            except LaunchError as error:
                about = {**about, "problem": error.message}  # noqa: PLW2901
        elif question is not None:
            about = {**about, "problem": f"no answer within {clusters.LIMIT_S:.0f} s"}  # noqa: PLW2901
        asked.append(about)
    _tell_shared(databases)
    return found._replace(asked=tuple(asked))


def _outlook(each: Launch) -> Outlook | None:
    backend = each.request.backend
    return backend.outlook(each.request.job, None) if backend.has_outlook else None


def _tell_shared(databases: Mapping[str, Mapping[str, str]]) -> None:
    """Tell of clusters among which their scheduler itself could choose."""
    for place, names in databases.items():
        if place and len(set(names.values())) > 1:
            output.note(
                f"{' and '.join(names)} belong to one slurmdbd ({place}): with clusters = "
                f"'{','.join(dict.fromkeys(names.values()))}' in one of them, Slurm itself chooses"
            )


def _starts_now(found: Candidates) -> Launch | None:
    """The first launch whose cluster expects to start it now."""
    for each in found.launches:
        at = _expected(found, each)
        if at is not None and at - time.time() < _NOW_S:
            return each
    return None


def _best(found: Candidates, limit: int) -> tuple[Launch, ...]:
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


def _as_try(each: Launch, path: Path, about: Race) -> Launch:
    """The launch as one try of the run at `path`: its agents wait for the claim."""
    claim = {"wait_s": about["wait_s"], "race": path.name, **({"place": about["claim"]} if about["claim"] else {})}
    asked = each.request
    asked = replace(asked, job=replace(asked.job, agents={**asked.job.agents, "claim": claim, "tracked_as": path.name}))
    own = path / races.TRIES / directories.new_id(asked.job.name)
    return each._replace(request=asked, plan=asked.plan(own), path=own)
