"""`distlaunch login`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

from launcher import output
from launcher.cli.parameters import OutputOption, argument, flag
from launcher.console import tables
from launcher.errors import RequestError
from launcher.service import logins as service
from launcher.service import observe

if TYPE_CHECKING:
    from launcher.results.cluster import Logins


def login(
    name: Annotated[
        Optional[str], argument(metavar="CLUSTER", help="Its login node, or any; without it, all are listed.")
    ] = None,
    close: Annotated[bool, flag(help="Close the connection instead.")] = False,
    fmt: OutputOption = None,
) -> None:
    """Open the connection to a cluster's login node: ssh asks for a password or a second factor here, and only here.

    $ distlaunch login juno
    $ distlaunch login
    """
    observe.directory(fmt)
    if name is None:
        if close:
            raise RequestError("--close without a cluster", hint="distlaunch login CLUSTER --close")
        data: Logins = {"logins": service.states([*service.known().values()])}
        rows = [(each["cluster"], each["login"], "open" if each["open"] else "closed") for each in data["logins"]]
        output.result(data, *tables.table(("CLUSTER", "LOGIN", "CONNECTION"), rows).splitlines())
        return
    found = service.named(name)
    state = service.closed(found) if close else service.opened(found)
    said = "" if close else f"logged in to {found.name}" + (f"; {state['lasts']}" if state["lasts"] else "")
    data = {"logins": [state]}
    output.result(data, *filter(None, [said]))
