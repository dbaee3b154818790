"""`distlaunch serve`."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Annotated, Optional

from launcher import output
from launcher.cli.parameters import OutputOption, flag
from launcher.errors import CommandError
from launcher.service import observe
from launcher.system import install

if TYPE_CHECKING:
    from launcher.results.serve import Serving


def serve(
    port: Annotated[int, flag("--port", metavar="PORT", help="Port; 0: a free one.")] = 0,
    host: Annotated[
        str, flag("--host", metavar="HOST", help="Address of this machine that only itself can reach.")
    ] = "127.0.0.1",
    token_file: Annotated[
        Optional[str],
        flag("--token-file", metavar="FILE", help="Write the token to this file, as for Prometheus, until the end."),
    ] = None,
    fmt: OutputOption = None,
) -> None:
    """Show all runs in a browser on this machine, live, until Ctrl-C.

    $ distlaunch serve
    $ distlaunch serve --port 8000 --token-file ~/.distlaunch/token
    """
    directory = observe.directory(fmt)
    try:
        from launcher.server import process  # 0.4 s; needs libraries that only this command needs
    except ImportError as error:
        why = f"serve needs {error.name}, which is not installed"
        raise CommandError(why, hint=install.command("serve")) from error

    def ready(found: Serving) -> None:
        output.result(found, found["url"])
        listens = f"[{found['host']}]" if ":" in found["host"] else found["host"]
        there = f"{found['port']}:{listens}:{found['port']} {socket.gethostname()}"
        output.note(f"open this URL in a browser; from another machine, first: ssh -L {there}")
        output.note("Ctrl-C ends it")

    process.serve(directory, host=host, port=port, token_file=token_file, ready=ready)
