"""Launching: requests, plans, and their submission."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from distlaunch._messages import logged, quiet
from distlaunch._run import Run
from launcher.errors import RequestError, SpecError
from launcher.service import candidates, launch, options, race, rendered
from launcher.service.interrupts import Unattended
from launcher.service.request import are_several, resolve
from launcher.settings import config

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from launcher.results.cluster import Planned
    from launcher.runs import records
    from launcher.service.request import Request


class Plan:
    """Exactly what would be sent. Made by `plan`; nothing is written or started before `submit`."""

    def __init__(self, planned: launch.Launch) -> None:
        self._planned = planned

    @property
    def id(self) -> str:
        """The id that the run would have."""
        return self._planned.path.name

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each node, or what is known of it before a scheduler chooses."""
        return tuple(node.host for node in self._planned.plan.nodes)

    @quiet
    def render(self) -> Mapping[str, str]:
        """The request as readable text: file name to content, as `--dry-run` prints it."""
        return dict(rendered.render(self._planned).texts)

    @quiet
    def write(self, directory: str | os.PathLike[str]) -> list[str]:
        """Write all that is needed to run it by hand, as `--render-to` does. Returns the paths of the files."""
        request = self._planned.request
        to = replace(request, options=replace(request.options, render_to=str(directory)))
        return list(rendered.render(self._planned._replace(request=to)).written)

    @quiet
    def to_json(self) -> Planned:
        """The whole plan as plain JSON: the `result` of `--dry-run --output json`."""
        return rendered.render(self._planned).data

    @quiet
    def submit(self) -> Run:
        """Submit exactly this plan. A plan can be submitted once."""
        return send(self._planned)

    def __repr__(self) -> str:
        return f"<distlaunch.Plan {self.id} on {self._planned.request.backend_name}>"


@quiet
def plan(
    script: str | os.PathLike[str] | None = None,
    args: Iterable[str] = (),
    *,
    backend: str | None = None,
    cluster: str | None = None,
    module: bool = False,
    program: bool = False,
    **options: Any,
) -> Plan:
    """What `submit` would send for the same arguments. Writes nothing, starts nothing."""
    given = {**options, "module": module, "no_python": program or None}
    return Plan(launch.planned(request(script, args, backend, cluster, given)))


def submit(
    script: str | os.PathLike[str] | None = None,
    args: Iterable[str] = (),
    *,
    backend: str | None = None,
    cluster: str | None = None,
    module: bool = False,
    program: bool = False,
    **options: Any,
) -> Run:
    """Start a script on every node, and return at once.

    `backend` is `local` unless a backend, or a `cluster` of the settings, is named. `module`: `script` is the name of a
    module. `program`: `script` is a program, not a Python script. `options` are those of the command line, with
    underscores: `nodes=4`, `nproc_per_node=8`, `time=3600`, `env={"A": "1"}`, `partition="gpu"`. Settings files and
    `DISTLAUNCH_*` variables apply as they do there. `roles`, the path of a run file, takes the place of `script`.

    `cluster` may name several, as `juno,lab`, or `any`. If none can start the run now, it is queued on several, and
    this waits until the first has started it.

    Raises `LaunchError`. If submission fails or is interrupted by Ctrl-C, what was started is ended.
    """
    if backend is None and are_several(cluster):
        given = {**options, "module": module, "no_python": program or None}
        return _first(_values(script, args, None, cluster, given))
    return plan(script, args, backend=backend, cluster=cluster, module=module, program=program, **options).submit()


def request(
    script: str | os.PathLike[str] | None,
    args: Iterable[str],
    backend: str | None,
    cluster: str | None,
    given: Mapping[str, Any],
) -> Request:
    """The checked request. It is detached, as no terminal follows it."""
    return resolve(backend or (None if cluster else "local"), _values(script, args, backend, cluster, given))


def _values(
    script: str | os.PathLike[str] | None,
    args: Iterable[str],
    backend: str | None,
    cluster: str | None,
    given: Mapping[str, Any],
) -> dict[str, Any]:
    if isinstance(args, str):
        raise SpecError(f"args is a single string, {args!r}", hint='write a list: ["--epochs", "20"]')
    found = options.values(given, backend, cluster)
    return {
        **found, "script": None if script is None else str(script), "args": [str(arg) for arg in args],
        "cluster": cluster, "detach": True,
    }  # fmt: skip


def send(planned: launch.Launch) -> Run:
    """Submit the run. Raises `RequestError` if another process cancels it before it is submitted."""
    return Run(sent(planned.path.name, lambda signals: launch.start(planned, signals)))


@quiet
def _first(values: Mapping[str, Any]) -> Run:
    """Submit to the first of several clusters."""
    entry = candidates.entered(values, config.load(), waits=True)
    if entry.alone is not None:
        return send(entry.alone)
    return Run(sent(entry.path.name, lambda signals: race.first(entry, signals)))


def sent(name: str, send_it: Callable[[Unattended], records.Run]) -> records.Run:
    """What `send_it` has submitted. Raises `RequestError` if another process cancels it before that."""
    signals = Unattended()
    with logged():
        try:
            return send_it(signals)
        except KeyboardInterrupt:
            if not signals.stops:
                raise
            raise RequestError(f"{name} was cancelled before it was submitted") from None
