"""All clusters of the settings at a glance: what they have, and when a job would start there."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from launcher import backends
from launcher.backends._outlook import nothing
from launcher.errors import LaunchError, RequestError
from launcher.service.request import check_job, chosen, of
from launcher.settings import config, job_spec
from launcher.settings.options import JobOptions
from launcher.settings.values import from_text
from launcher.system import listener, names
from launcher.system.question import Question

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from launcher.backends._outlook import Outlook
    from launcher.results.cluster import Overview
    from launcher.settings.config import Config

LIMIT_S = 10.0
"""How long each cluster may take to answer."""

_LOOK_S = 0.02


def known(settings: Config, wanted: Sequence[str]) -> list[str]:
    """The names of these clusters, or of all in the settings. Raises `RequestError` for an unknown one, or if none."""
    every = settings.cluster_names()
    if not every:
        hint = "name them in a settings file: [clusters.NAME] with backend = ..."
        raise RequestError("no cluster is in the settings", hint=hint)
    for name in wanted:
        if name not in every:
            raise RequestError(f"unknown cluster {name!r}", hint=names.hint(name, every))
    return list(wanted) or every


def check(flags: Mapping[str, Any]) -> None:
    """Raise `SpecError` for a flag that no cluster can accept."""
    check_job(config.Config((), {}).resolve(JobOptions, flags=of(JobOptions, flags)))


def overviews(settings: Config, clusters: Sequence[str], flags: Mapping[str, Any]) -> Iterator[Overview]:
    """Ask all clusters at once; yields each as it answers, or has not within `LIMIT_S`. `flags`: of the job."""
    asked = {name: _Asked(settings, name, flags) for name in clusters}
    limit = time.monotonic() + LIMIT_S
    while asked:
        late = time.monotonic() >= limit
        for name, each in list(asked.items()):
            if each.question.answered(0.0) or late:
                del asked[name]
                yield each.overview()
        time.sleep(_LOOK_S if asked else 0.0)


def _fitting(flags: Mapping[str, Any], options: type) -> tuple[dict[str, Any], int | None]:
    """The flags as this backend has them, and the GPUs per node if it has no option for them."""
    found = {name: value for name, value in flags.items() if value is not None}
    gpus = found.pop("gpus_per_node", None)
    if gpus is None:
        return found, None
    if kind := config.field_types(options).get("gpus_per_node"):
        return {**found, "gpus_per_node": from_text(gpus, kind, "--gpus-per-node")}, None
    return found, from_text(gpus.rpartition(":")[2], int, "--gpus-per-node")


class _Asked:
    """A cluster that is asked."""

    def __init__(self, settings: Config, name: str, flags: Mapping[str, Any]) -> None:
        self._settings, self._name, self._flags = settings, name, {**flags, "cluster": name}
        self._notes: list[str] = []
        self._backend = ""
        with listener.told_to(lambda kind, text: self._notes.append(text) if kind == "warning" else None):
            self.question = Question(self._ask, f"clusters {name}")

    def _ask(self) -> Outlook:
        backend = backends.load(self._settings.cluster(self._name, lambda name: backends.load(name).options).backend)
        self._backend = backend.name
        flags, gpus = _fitting(self._flags, backend.options)
        where = chosen(None, flags, self._settings)
        job = self._settings.resolve(JobOptions, flags=of(JobOptions, flags), cluster=where.cluster)
        check_job(job)
        spec = job_spec.from_options(config.build(JobOptions, job), ("true",), kind="program", cwd=os.getcwd())
        if not where.backend.has_outlook:
            raise RequestError(f"{where.backend.name} does not tell")
        found: Outlook = where.backend.outlook(spec, gpus)
        return found

    def overview(self) -> Overview:
        """The answer so far."""
        found: Overview = {
            **nothing(), "cluster": self._name, "backend": self._backend, "problem": None,
            "start": None, "notes": self._notes,
        }  # fmt: skip
        if not self.question.answered(0.0):
            return {**found, "problem": f"no answer within {LIMIT_S:.0f} s"}
        try:
            capacity, start, _ = self.question.answer()
        except Exception as error:  # noqa: BLE001 - one broken cluster must not break the others' rows
            return {**found, "problem": error.message if isinstance(error, LaunchError) else repr(error)}
        return {**found, **capacity, "start": start}
