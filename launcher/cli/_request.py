"""What is to be launched: flags, environment and settings files made into one checked request."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from launcher import backends, config, output, spec
from launcher.errors import SpecError
from launcher.options import JobOptions, option
from launcher.reader import parse_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.backends._base import Backend
    from launcher.reader import Wanted
    from launcher.spec import JobSpec, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """What concerns this one launch, and is no setting."""

    module: bool = option(False, flags=("-m", "--module"), help="SCRIPT is a module's name, as with python -m.")
    detach: bool = option(False, flags=("-d", "--detach"), help="Print the run's id and return at once.")
    dry_run: bool = option(False, flags=("--dry-run",), help="Print what would be sent; write and send nothing.")
    render_to: str = option("", metavar="DIR", help="Write what would be sent to files in DIR, for sending it by hand.")
    explain: bool = option(False, flags=("--explain",), help="Say which variables NCCL, gloo and UCX get, and why.")
    quiet: bool = option(False, flags=("-q", "--quiet"), help="Nothing on stderr but warnings and failures.")
    verbose: bool = option(False, flags=("-v", "--verbose"), help="More on stderr.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One launch, with all settings resolved."""

    backend: Backend[Any]
    backend_name: str
    """As the command line names it."""

    cluster: str | None
    job: JobSpec
    options: LaunchOptions
    runs_root: str
    ranks: Wanted | None


def resolve(backend_name: str | None, values: dict[str, Any]) -> Request:
    """All settings from flags, environment and files, checked."""
    settings = config.load()
    resolved = settings.resolve(config.GlobalOptions, flags=_of(config.GlobalOptions, values))
    general = config.build(config.GlobalOptions, resolved)
    options = LaunchOptions(**{key: value for key, value in _of(LaunchOptions, values).items() if value is not None})
    output.setup(fmt=general.output, verbosity=-1 if options.quiet else int(options.verbose))
    for file in settings.files:
        output.detail(f"settings: {file.path}")
    try:
        ranks = parse_ranks(general.log_ranks)
    except ValueError:
        raise SpecError(f"log-ranks {general.log_ranks!r} is no list of ranks", hint="write all, or 0,3-5") from None
    cluster = settings.cluster(values["cluster"], lambda name: backends.load(name).options) if values["cluster"] else None
    if cluster and backend_name not in (None, cluster.backend):
        raise SpecError(
            f"cluster {cluster.name!r} has the backend {cluster.backend}, not {backend_name}",
            hint=f"distlaunch run --on {cluster.name} SCRIPT",
        )
    name = cluster.backend if cluster else str(backend_name)
    backend = backends.load(name)
    own = settings.resolve(backend.options, flags=_of(backend.options, values), cluster=cluster)
    _leave_out(cluster.name if cluster else "", own)
    job = settings.resolve(JobOptions, flags=_of(JobOptions, values), cluster=cluster)
    _tell_project(settings, {**own, **job}, backend.options)
    return Request(
        backend=backend(config.build(backend.options, own)),
        backend_name=name,
        cluster=cluster.name if cluster else None,
        job=_job(config.build(JobOptions, job), options, values["script"], values["args"] or []),
        options=options,
        runs_root=general.runs_dir,
        ranks=ranks,
    )


def _tell_project(settings: config.Config, found: Mapping[str, config.Setting], options: type) -> None:
    """Say what a project's file changes of what is executed: it may be somebody else's work, and is found, not named."""
    if settings.project is None:
        return
    path = settings.project.path
    names = [item.name for cls in (JobOptions, options) for item in fields(cls) if item.metadata["executes"]]
    given = [name for name in names if any(part.startswith(f"{path}:") for part in found[name].source.split(" + "))]
    if given:
        output.note(f"{path} sets {', '.join(given)}")


def _leave_out(cluster: str, own: dict[str, config.Setting]) -> None:
    """Add the cluster's quarantined hosts to its backend's `exclude`."""
    from launcher import quarantine

    bad = quarantine.hosts(cluster, os.environ) if cluster else {}
    if bad and "exclude" not in own:
        output.note(f"{cluster}'s quarantine ({', '.join(bad)}) has no effect: this backend chooses no hosts")
    elif bad:
        given = own["exclude"]
        own["exclude"] = config.Setting(",".join([*filter(None, [given.value]), *bad]), f"{given.source} + quarantine")
        output.note(f"leaving out {', '.join(bad)}: distlaunch doctor put them into quarantine")


def _job(options: JobOptions, launching: LaunchOptions, script: str, args: list[str]) -> JobSpec:
    """The job, with its script found and checked."""
    from launcher import bundle

    if launching.module and options.no_python:
        raise SpecError("--module and --no-python exclude each other")
    kind: Kind = "module" if launching.module else "program" if options.no_python else "script"
    try:
        cwd = os.getcwd()
    except OSError as error:
        raise SpecError(f"the working folder is gone: {error.strerror}", hint="cd somewhere else") from error
    found = bundle.find_script(script, kind, cwd)
    if found.bundled:
        output.note(f"using the bundled {script}")
    job = spec.from_options(options, (found.path, *args), kind=kind, cwd=cwd)
    if options.name not in ("", job.name):
        output.note(f"name {options.name!r} becomes {job.name!r}, as names have to be valid everywhere")
    return job


def _of(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that belong to this options class."""
    own = {item.name: values.get(item.name) for item in fields(cls)}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in own.items()}
