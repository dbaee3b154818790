"""Clusters without a local run: settings, the runs that they report, and the health of their nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distlaunch._leaving import cancelled_if_left
from distlaunch._messages import quiet
from distlaunch._plan import sent
from distlaunch._run import Run
from launcher.errors import SpecError
from launcher.service import cluster as clusters
from launcher.service import clusters as overviews
from launcher.service import effective, examination, launch, observe, options
from launcher.service import logins as login_nodes
from launcher.service.interrupts import Unattended
from launcher.settings import config

if TYPE_CHECKING:
    import os

    from launcher.results.cluster import Examined, LoginState, Overview, Settings, SurveyedHost
    from launcher.results.run import ClusterRun

_OF_A_JOB = ("nodes", "nproc_per_node", "gpus_per_node", "time")


@quiet
def settings(cluster: str | None = None) -> Settings:
    """Every setting with its value and source: the `result` of `distlaunch config --output json`."""
    loaded = config.load()
    return effective.effective(loaded, loaded.resolve(config.GlobalOptions), cluster).to_json()


@quiet
def cluster_runs(name: str) -> list[ClusterRun]:
    """Runs that a cluster or backend itself reports, of all users: the `runs` of `distlaunch ls --on NAME`."""
    return clusters.found(name)


@quiet
def cluster_hosts(name: str) -> list[SurveyedHost]:
    """The hosts of a cluster or backend, and who has them: the `hosts` of `distlaunch hosts --on NAME`."""
    return clusters.hosts(name)


@quiet
def cluster_overviews(*names: str, **given: Any) -> list[Overview]:
    """The clusters of the settings, or these: the `clusters` of `distlaunch clusters`.

    `given`: `nodes`, `nproc_per_node`, `gpus_per_node` and `time` of a job that would be started.
    """
    loaded = config.load()
    wanted = overviews.known(loaded, names)
    given = options.converted(given, dict.fromkeys(_OF_A_JOB, str), ("time",))
    overviews.check(given)
    found = {each["cluster"]: each for each in overviews.overviews(loaded, wanted, given)}
    return [found[name] for name in wanted]


@quiet
def logins(*names: str) -> list[LoginState]:
    """The login nodes of the clusters in the settings, or of these: the `logins` of `distlaunch login`.

    It opens no connection: only `distlaunch login` asks for a password or a second factor.
    """
    found = [login_nodes.named(name) for name in names] if names else [*login_nodes.known().values()]
    return login_nodes.states(found)


@quiet
def adopt(run: str, *, cluster: str | None = None, runs_dir: str | os.PathLike[str] | None = None, **given: Any) -> Run:
    """Find a run that another host started over SSH, by the start of its id, so that it can be followed here, too."""
    own = options.values(given, None if cluster else clusters.adopting(), cluster)
    return Run(clusters.adopt(run, observe.runs_root(None if runs_dir is None else str(runs_dir)), cluster, own))


@quiet
def doctor(
    *,
    backend: str | None = None,
    cluster: str | None = None,
    seconds: float = 5.0,
    quarantine: bool = False,
    **given: Any,
) -> Examined:
    """Examine nodes and wait for the verdict: the `result` of `distlaunch doctor --output json`; `ok` sums it up.

    On Ctrl-C, its job is cancelled.
    """
    if wrong := sorted(given.keys() & examination.IGNORED):
        raise SpecError(f"doctor: {wrong[0]} does not apply", hint="leave it out: doctor has a job of its own")
    asked = examination.values(options.values(given, backend, cluster), seconds) | {"cluster": cluster, "detach": True}
    request = examination.request(backend or (None if cluster else "local"), asked, config.load())
    if quarantine:
        examination.check_quarantine(request)
    planned = launch.planned(request)
    run = sent(planned.path.name, lambda signals: examination.start(planned, signals))
    with cancelled_if_left(Run(run)):
        outcome = examination.follow(planned, run, Unattended())
    return examination.examine_nodes(request, run, outcome, puts_away=quarantine).to_json()
