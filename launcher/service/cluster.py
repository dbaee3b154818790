"""Queries to a cluster without a local run: its list of runs, and adoption of a run that another host started."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from launcher import backends
from launcher.errors import BackendUnavailableError, RequestError
from launcher.service.request import tell_project
from launcher.settings import config, quarantine, verdicts
from launcher.system import names
from launcher.system.dataclass import fields

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from launcher.backends._base import AnyBackend
    from launcher.results.cluster import SurveyedHost
    from launcher.results.run import ClusterRun
    from launcher.runs.records import Run


def of(name: str, flags: Mapping[str, Any] | None = None) -> AnyBackend:
    """The backend of the cluster of this name, with its settings, or the backend of this name."""
    settings = config.load()
    known = settings.cluster_names()
    if name not in known and name not in backends.names():
        raise RequestError(f"no cluster or backend {name!r}", hint=names.hint(name, [*known, *backends.names()]))
    return _backend(settings, name if name in known else None, name, flags or {})


def found(name: str) -> list[ClusterRun]:
    """The runs that the cluster or backend of this name reports."""
    backend = of(name)
    if not backend.can_list:
        raise BackendUnavailableError(f"{backend.name} cannot list runs", hint="distlaunch ls lists those started here")
    return backend.found()


def hosts(name: str) -> list[SurveyedHost]:
    """The hosts of the cluster or backend of this name, with who has them."""
    backend = of(name)
    if not backend.can_survey:
        able = [each for each in backends.names() if backends.load(each).can_survey]
        raise BackendUnavailableError(
            f"{backend.name} cannot list hosts",
            hint=f"its own tools show them; distlaunch can do it with {', '.join(able)}",
        )
    bad, last = quarantine.hosts(name, os.environ), verdicts.of(name, os.environ)
    found = backend.hosts()
    return [{**host, "quarantine": bad.get(host["host"]), "doctor": last.get(host["host"])} for host in found]


def adopting() -> str:
    """The backend that adopts runs when no cluster is named."""
    return next(name for name in backends.names() if backends.load(name).can_adopt)


def adopt(text: str, directory: Path, cluster: str | None, flags: Mapping[str, Any]) -> Run:
    """Add a run that another host started to the runs in this directory."""
    backend = of(cluster or adopting(), flags)
    known = {item.name for item in fields(backend.options)}
    for name in (name for name, value in flags.items() if value is not None and name not in known):
        raise RequestError(f"{backend.name} has no option {name!r}", hint="options of adopt are for runs over SSH")
    return _adopted(backend, text, directory)


def take(text: str, directory: Path, name: str) -> Run:
    """The same, for the cluster or backend of this name."""
    return _adopted(of(name), text, directory)


def _adopted(backend: AnyBackend, text: str, directory: Path) -> Run:
    if not backend.can_adopt:
        hint = "use the runs_dir that it was started with"
        raise BackendUnavailableError(f"{backend.name} cannot adopt runs", hint=hint)
    return backend.adopt(text, directory)


def _backend(settings: config.Config, cluster: str | None, backend_name: str, flags: Mapping[str, Any]) -> AnyBackend:
    profile = settings.cluster(cluster, lambda kind: backends.load(kind).options) if cluster else None
    backend = backends.load(profile.backend if profile else backend_name)
    own = settings.resolve(backend.options, flags=flags, cluster=profile)
    tell_project(settings, backend.options, own, profile)
    options: Any = config.build(backend.options, own)
    found = backend(options)
    found.cluster = cluster or ""
    return found
