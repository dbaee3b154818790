"""`distlaunch ls`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from launcher import names, output, runs, summary
from launcher.cli import _observe
from launcher.cli._parameters import OutputOption  # noqa: TC001 - typer reads them
from launcher.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from launcher.runs import Run


def ls(
    run: Annotated[
        Optional[str], typer.Argument(metavar="[RUN]", help="List the tasks of this job array.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", metavar="N", help="Only the newest N; 0: all.")] = 0,
    on: Annotated[
        Optional[str],
        typer.Option("--on", metavar="NAME", help="Ask this cluster or backend, also for others' runs.", show_default=False),
    ] = None,
    fmt: OutputOption = None,
) -> None:
    """List runs, the newest last."""
    folder = _observe.folder(fmt)
    if on is not None:
        _of_cluster(on)
        return
    found = [(each, _observe.state_of(each)) for each in _wanted(folder, run, limit)]
    data = [
        {
            "run": each.id,
            "state": state.get("state"),
            "exit_code": state.get("exit_code"),
            "backend": each.backend,
            "cluster": each.cluster,
            "nodes": each.nodes,
            "tasks": list(each.tasks),
            "created": each.created or None,
            "command": list(each.command),
            "cwd": each.cwd,
            "path": str(each.path),
        }
        for each, state in found
    ]
    rows = [
        (
            f"{each.id} [{len(each.tasks)}]" if each.tasks else each.id,
            state.get("state"),
            each.cluster or each.backend or None,
            each.nodes or None,
            summary.age(each.created),
            summary.command_line(each.command)[:60] or None,
        )
        for each, state in found
    ]
    text = output.table(("RUN", "STATE", "ON", "NODES", "AGE", "COMMAND"), rows) if rows else ""
    if not rows:
        output.note(f"no runs in {folder}")
    output.result({"runs": data}, *text.splitlines())


def _of_cluster(name: str) -> None:
    """Runs as the cluster of that name knows them."""
    from launcher import backends, config
    from launcher.cli._request import tell_project

    settings = config.load()
    known = settings.cluster_names()
    profile = settings.cluster(name, lambda kind: backends.load(kind).options) if name in known else None
    if profile is None and name not in backends.names():
        raise RequestError(f"no cluster or backend {name!r}", hint=names.hint(name, [*known, *backends.names()]))
    backend = backends.load(profile.backend if profile else name)
    own = settings.resolve(backend.options, cluster=profile)
    tell_project(settings, backend.options, own, profile)
    options: Any = config.build(backend.options, own)
    found = backend(options).found()
    rows = [(run["run"], run["state"], run["nodes"] or None, summary.age(run["created"])) for run in found]
    text = output.table(("RUN", "STATE", "NODES", "AGE"), rows) if rows else ""
    if not rows:
        output.note(f"no runs on {name}")
    output.result({"runs": found}, *text.splitlines())


def _wanted(folder: Path, array: str | None, limit: int) -> Iterator[Run]:
    """The runs, or the tasks of one of them."""
    if array is None:
        listed = runs.ids(folder)
        yield from (runs.read(folder, name) for name in (listed[-limit:] if limit > 0 else listed))
        return
    found = runs.find(folder, array)
    if not found.tasks:
        raise RequestError(f"{found.id} is no job array", hint=f"distlaunch status {found.id}")
    yield from (found.task(index) for index in found.tasks[-limit if limit > 0 else 0 :])
