"""Launch requests: flags, environment and settings files, combined and checked."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from launcher import backends, output
from launcher.agent.named_tuple import NamedTuple
from launcher.errors import SpecError
from launcher.service.job import asked_roles, of_roles, of_script, of_workers
from launcher.service.launch_options import LaunchOptions, check, check_stragglers, is_rank, to_fetch, told
from launcher.settings import checks, config, job_checks, run_file
from launcher.settings.options import JobOptions
from launcher.system import names
from launcher.system.dataclass import dataclass, fields, replace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from launcher.agent.messages import LentTerminal
    from launcher.backends._base import AnyBackend
    from launcher.backends._plan import Plan
    from launcher.runs.reader import Wanted
    from launcher.spec import JobSpec


ANY = "any"
"""In place of clusters' names: all of the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One launch, with all settings resolved."""

    backend: AnyBackend
    backend_name: str
    """As the command line names it."""

    cluster: str | None
    job: JobSpec
    options: LaunchOptions
    runs_root: str
    on_hangup: str
    ranks: Wanted | None
    ranks_asked: bool
    """Whether the ranks were given on this command line."""

    fetch: tuple[str, ...]
    """Patterns of the files to fetch at the end, from the nodes that `job.fetches` names."""

    given: Mapping[str, Any]
    """Script, arguments and options of the job, as they were given."""

    lent: LentTerminal | None
    """How workers share our terminal and stdin; see `terminal_modes.lent`."""

    settings: Mapping[str, config.Setting]
    """Options of the backend and the job, with their sources."""

    def plan(self, run_dir: Path) -> Plan:
        """The backend's plan. An error about a value also names where the value was set."""
        check_stragglers(self.settings, self.cluster, self.backend_name)
        with checks.placed(self.settings):
            plan: Plan = self.backend.plan(self.job, run_dir)
            return plan


def resolve(backend_name: str | None, values: Mapping[str, Any], settings: config.Config | None = None) -> Request:
    """Resolve all settings from `values`, the environment and files, and check them."""
    settings = settings or config.load()
    resolved = settings.resolve(config.GlobalOptions, flags=of(config.GlobalOptions, values))
    general = config.build(config.GlobalOptions, resolved)
    options = LaunchOptions(**{key: value for key, value in of(LaunchOptions, values).items() if value is not None})
    check(options)
    checks.check(config.GlobalOptions, resolved)
    warn_of_variables(settings.env)
    where = chosen(backend_name, values, settings)
    job = settings.resolve(JobOptions, flags=of(JobOptions, values), cluster=where.cluster)
    check_job(job)
    checks.blame("env", job["env"].layers, job_checks.check_here(job["env"].value))
    checks.blame("secret", job["secret"].layers, job_checks.check_secrets_here)
    tell_project(settings, JobOptions, job)
    for path in where.backend.settings_files() if options.verbose else ():
        output.detail(f"settings: {path}")
    ranks = config.ranks(general.log_ranks)
    asked = config.build(JobOptions, job)
    options, fetch = _with_keyboard(options, asked), to_fetch(options, job)
    lent = _lent(options, asked, ranks, where.backend)
    ranks = ranks | {int(options.interactive)} if options.interactive and ranks is not None else ranks
    return Request(
        backend=where.backend,
        backend_name=where.backend.name,
        cluster=where.cluster.name if where.cluster else None,
        job=replace(
            _bringing(told(_made(job, options, values, settings, where), asked, options), asked, where.backend),
            terminal=lent,
            debug=int(options.debug) if options.debug else None,
            fetches=asked.fetch_node if fetch else "",
        ),
        options=options,
        runs_root=general.runs_dir,
        on_hangup=asked.on_hangup,
        ranks=ranks,
        ranks_asked=resolved["log_ranks"].source == "flag",
        fetch=fetch,
        given=_given(values),
        lent=lent,
        settings={**where.own, **job},
    )


def _made(
    job: Mapping[str, config.Setting],
    options: LaunchOptions,
    values: Mapping[str, Any],
    settings: config.Config,
    where: Chosen,
) -> JobSpec:
    """The job, of one script or of several roles."""
    if roles := asked_roles(values, where.backend):
        return of_roles(roles, options, where.backend, partial(_of_role, values, settings, where.cluster))
    if values.get("script") is None:
        raise SpecError("no script given", hint="name one, or roles")
    made = of_script(config.build(JobOptions, job), options, values["script"], values.get("args") or [])
    return of_workers(made, job, where.backend)


def _bringing(spec: JobSpec, asked: JobOptions, backend: AnyBackend) -> JobSpec:
    """The job, which brings an environment if one was asked for."""
    if not asked.env_ship:
        return spec
    from launcher.service import shipping  # few runs bring one

    return shipping.shipped(spec, asked, backend)


def _of_role(
    values: Mapping[str, Any],
    settings: config.Config,
    cluster: config.ClusterProfile | None,
    cls: type,
    own: Mapping[str, config.Setting],
) -> dict[str, config.Setting]:
    """The checked settings of an options class for a role, with its own before all others."""
    known = {item.name for item in fields(cls)}
    above = {name: setting for name, setting in own.items() if name in known}
    found = settings.resolve(cls, flags=of(cls, values), cluster=cluster, above=above)
    if cls is JobOptions:
        check_job(found)
        checks.blame("env", found["env"].layers, job_checks.check_here(found["env"].value))
    else:
        checks.check(cls, found)
    return found


def _with_keyboard(options: LaunchOptions, job: JobOptions) -> LaunchOptions:
    """Set `interactive` to the rank with the keyboard, for `debug` too. Raises `SpecError` if there is no keyboard."""
    for name in ("interactive", "debug"):
        is_rank(name)(getattr(options, name))
    if options.debug and options.interactive not in ("", options.debug):
        told = f"--debug {options.debug} and --interactive {options.interactive}"
        hint = "--debug gives it to its rank"
        raise SpecError(f"{told} name different ranks, but there is only one keyboard", hint=hint)
    if options.debug and job.no_python:
        raise SpecError(
            "--debug and --no-python exclude each other: the debugger is Python's",
            hint="--interactive is for programs, too",
        )
    nobody = next((name for name in ("detach", "dry_run", "render_to") if getattr(options, name)), "")
    nobody = nobody or "tty never" * (job.tty == "never") or "output json" * output.as_json()
    if (options.debug or options.interactive) and nobody:
        asked = "debug" if options.debug else "interactive"
        raise SpecError(f"--{asked} and --{nobody.replace('_', '-')} exclude each other", hint="leave one of them out")
    return replace(options, interactive=options.interactive or options.debug)


def _lent(options: LaunchOptions, job: JobOptions, ranks: Wanted | None, backend: AnyBackend) -> LentTerminal | None:
    """How workers share our terminal and stdin; see `terminal_modes.lent`."""
    from launcher.console import terminal_modes

    if options.detach or options.dry_run or options.render_to:
        return None
    keyboard = int(options.interactive) if options.interactive else None
    tty = job.tty != "never" and not output.as_json()
    return terminal_modes.lent(ranks, keyboard, tty=tty, here=backend.is_here)


def are_several(on: str | None) -> bool:
    """Whether the text names more than one cluster."""
    return on is not None and (on == ANY or "," in on)


def named(on: str, settings: config.Config) -> list[config.ClusterProfile]:
    """The clusters that the text names. Raises `RequestError` for an unknown one."""
    every = settings.cluster_names() if on == ANY else [name.strip() for name in on.split(",")]
    return [settings.cluster(name, lambda backend: backends.load(backend).options) for name in every]


class Chosen(NamedTuple):
    """A backend with its options, and the cluster whose settings it uses."""

    backend: AnyBackend
    cluster: config.ClusterProfile | None
    own: Mapping[str, config.Setting]
    """The backend's options with their sources."""


def chosen(backend_name: str | None, values: Mapping[str, Any], settings: config.Config | None = None) -> Chosen:
    """Choose where to run: the backend, with the settings of the cluster that `values` name."""
    settings = settings or config.load()
    wanted = values.get("cluster")
    cluster = settings.cluster(wanted, lambda name: backends.load(name).options) if wanted else None
    if cluster and backend_name not in (None, cluster.backend):
        raise SpecError(
            f"cluster {cluster.name!r} has the backend {cluster.backend}, not {backend_name}",
            hint=f"distlaunch run --on {cluster.name} SCRIPT",
        )
    backend = backends.load(cluster.backend if cluster else str(backend_name))
    own = settings.resolve(backend.options, flags=of(backend.options, values), cluster=cluster)
    checks.check(backend.options, own)
    tell_project(settings, backend.options, own, cluster)
    _leave_out(cluster.name if cluster else "", own)
    found = backend(config.build(backend.options, own))
    found.cluster = wanted or ""
    return Chosen(found, cluster, own)


def tell_project(
    settings: config.Config,
    options: type,
    found: Mapping[str, config.Setting],
    cluster: config.ClusterProfile | None = None,
) -> None:
    """Print what a project file changes about what is executed: it is found, not named, and may be another user's."""
    path = settings.project.path if settings.project else ""
    given = settings.of_project(options, found) + ["backend"] * bool(cluster and path and cluster.redefined_by == path)
    if given:
        output.note(f"{path} sets {', '.join(given)}")


def warn_of_variables(env: Mapping[str, str]) -> None:
    """Warn about variables that look like settings but are not. Raises `SpecError` for one that only a flag can set."""
    if not (unknown := checks.unknown_variables(env, (config.GlobalOptions, JobOptions))):
        return
    every = [config.GlobalOptions, JobOptions, *(backends.load(name).options for name in backends.names())]
    flags = {
        item.name.upper(): item.metadata["flags"] or (f"--{item.name.replace('_', '-')}",)
        for item in fields(LaunchOptions)
    }
    settings = [config.ENV_PREFIX + item.name.upper() for cls in every for item in fields(cls)]
    for name in checks.unknown_variables(dict.fromkeys(unknown, ""), every):
        if flag := flags.get(name.removeprefix(config.ENV_PREFIX)):
            raise SpecError(
                f"{name}: {flag[-1]} is not a setting", hint="it concerns a single launch: give it as a flag"
            )
        close = names.nearest(name, settings)
        output.warn(f"{name} is not a setting of distlaunch" + (f": did you mean {close}?" if close else ""))


def check_job(job: Mapping[str, config.Setting], *, every: bool = False) -> None:
    """Check the job's options. Variables whose values look like keys must be secrets."""
    checks.check(JobOptions, job, every=every)
    layers = [layer for layer in job["env"].layers if layer.value]
    if layers and not job["ship_secrets"].value:
        from launcher.payload import credentials

        checks.blame("env", layers, lambda pairs: credentials.check_variables(pairs, os.environ))


def _leave_out(cluster: str, own: dict[str, config.Setting]) -> None:
    """Add the cluster's quarantined hosts to its backend's `exclude`."""
    from launcher.agent.system.folding import folded
    from launcher.settings import quarantine

    bad = quarantine.hosts(cluster, os.environ) if cluster else {}
    if bad and "exclude" not in own:
        output.note(f"{cluster}'s quarantine ({folded(bad)}) has no effect: this backend chooses no hosts")
    elif bad:
        given = own["exclude"]
        own["exclude"] = config.Setting(",".join([*filter(None, [given.value]), *bad]), f"{given.source} + quarantine")
        output.note(f"leaving out {folded(bad)}: they are in {cluster}'s quarantine (distlaunch hosts --on {cluster})")


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    """What of the values describes the job wherever it runs, as plain JSON."""
    names = {"script", "args", "module", "roles", *(item.name for item in fields(JobOptions))}
    given = {name: value for name, value in values.items() if name in names and value is not None}
    return {**given, "roles": os.path.abspath(given["roles"])} if "roles" in given else given


def of(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that belong to this options class."""
    own = {item.name: values.get(item.name) for item in fields(cls)}
    if "role" in own:
        own["role"] = run_file.split(own["role"])[0]
    return {key: tuple(value) if isinstance(value, list) else value for key, value in own.items()}
