"""`distlaunch adopt RUN`."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer

from launcher import backends, config, output
from launcher.cli import _observe
from launcher.cli._parameters import OutputOption  # noqa: TC001 - typer reads it
from launcher.cli._request import tell_project


def adopt(  # noqa: PLR0917 - typer's
    run: Annotated[str, typer.Argument(metavar="RUN", help="Its id, or the start of it.")],
    inventory: Annotated[
        Optional[list[str]],
        typer.Option("-i", "--inventory", metavar="PATH|H1,H2,", help="The hosts that it was started on.", show_default=False),
    ] = None,
    limit: Annotated[Optional[str], typer.Option(metavar="PATTERN", help="Only these of them.", show_default=False)] = None,
    remote_dir: Annotated[
        Optional[str], typer.Option(metavar="DIR", help="The folder on the hosts that it was started with.", show_default=False)
    ] = None,
    on: Annotated[
        Optional[str], typer.Option("--on", metavar="NAME", help="The cluster of the settings.", show_default=False)
    ] = None,
    fmt: OutputOption = None,
) -> None:
    """Find a run that another machine started over SSH, so that status, logs and cancel work here, too."""
    folder = _observe.folder(fmt)
    settings = config.load()
    cluster = settings.cluster(on, lambda name: backends.load(name).options) if on else None
    backend = backends.load(cluster.backend if cluster else "ansible")
    given = {"inventory": tuple(inventory) if inventory else None, "limit": limit, "remote_dir": remote_dir}
    own = settings.resolve(backend.options, flags=given, cluster=cluster)
    tell_project(settings, backend.options, own, cluster)
    options: Any = config.build(backend.options, own)
    found = backend(options).adopt(run, folder)
    with output.after(f"{found.id} is among the runs here now"):
        output.result({"run": found.id, "path": str(found.path), "hosts": found.hosts}, found.id)
