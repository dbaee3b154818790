"""Runs in a browser."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from launcher.errors import CommandError
from launcher.service import observe
from launcher.system import install

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def serve(
    port: int = 0, *, token_file: str | os.PathLike[str] | None = None, runs_dir: str | os.PathLike[str] | None = None
) -> Iterator[str]:
    """Show all runs in a browser on this machine, as `distlaunch serve` does, from a thread to the end of the block.

    Gives the URL, with its token. `port` 0: a free one. `token_file`: a file for the token, until the end.
    Raises `CommandError` if a library is missing, `RequestError` if the port is taken, `StorageError` for the file.
    """
    try:
        from launcher.server import process
    except ImportError as error:
        why = f"serve needs {error.name}, which is not installed"
        raise CommandError(why, hint=install.command("serve")) from error
    root = observe.runs_root(None if runs_dir is None else os.fspath(runs_dir))
    file = None if token_file is None else os.fspath(token_file)
    with process.background(root, port=port, token_file=file) as serving:
        yield serving["url"]
