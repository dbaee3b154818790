"""Reports as files: HTML, Markdown or JSON."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, cast, get_args

from launcher.errors import CommandError, RequestError
from launcher.system import install, names, storage

if TYPE_CHECKING:
    from launcher.results.report import Report, Written
    from launcher.system.storage import StrPath

Format = Literal["html", "md", "json"]
STDOUT = "-"
"""In place of a path."""


def format_of(given: str | None, path: StrPath | None) -> Format:
    """The format that was given, else that of the file's name, else HTML. Raises `RequestError` for an unknown one."""
    form, known = given or os.path.splitext(path or "")[1].removeprefix("."), get_args(Format)
    if given is not None and given not in known:
        raise RequestError(f"format {given!r} is not known", hint=names.hint(given, known))
    return cast("Format", form if form in known else "html")


def target(path: str | None, form: Format) -> str | None:
    """The file or directory to write to; None: stdout."""
    return None if path == STDOUT or (path is None and form != "html") else path or "."


def text(report: Report, form: Format) -> str:
    """The report in this format. Raises `CommandError` if a library for HTML is missing."""
    if form == "json":
        return storage.encode_json(report).decode()
    if form == "md":
        from launcher.pages.markdown import markdown

        return markdown(report)
    try:
        from launcher.pages.page import html  # 0.1 s; needs libraries that only this format needs
    except ImportError as error:
        hint = f"{install.command('html')}; or --format md"
        raise CommandError(f"a report as HTML needs {error.name}, which is not installed", hint=hint) from error
    return html(report)


def write(report: Report, form: Format, path: StrPath) -> Written:
    """Write the whole file, or nothing; in a directory, one of the run's name.

    Raises `StorageError`, and `RequestError` for what is neither a file nor a directory.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        path = os.path.join(path, f"{report['run'].replace('/', '-')}.{form}")
    if os.path.exists(path) and not os.path.isfile(path):
        raise RequestError(f"{path!r} is not a file", hint="-o - writes to stdout")
    data = text(report, form).encode(errors="backslashreplace")
    storage.write_whole(path, data)
    return {"run": report["run"], "path": os.path.abspath(path), "format": form, "bytes": len(data)}
