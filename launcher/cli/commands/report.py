"""`distlaunch report RUN`."""

from __future__ import annotations

from typing import Annotated, Optional

from launcher import output
from launcher.cli.parameters import OnOption, OutputOption, RunArgument, flag
from launcher.console import live_line
from launcher.errors import RequestError
from launcher.service import finding, observe, report_file, reports
from launcher.system import amounts


def report(
    run: RunArgument,
    out: Annotated[
        Optional[str],
        flag("-o", "--out", metavar="FILE", help="File or directory; - for stdout [default: RUN.html, stdout for md]."),
    ] = None,
    form: Annotated[
        Optional[str],
        flag("--format", metavar="html|md|json", help="Format of the report [default: as FILE ends, else html]."),
    ] = None,
    on: OnOption = None,
    fmt: OutputOption = None,
) -> None:
    """Write a report of a run: why it ended, its start-up, restarts, samples, last lines and settings.

    $ distlaunch report last
    $ distlaunch report --format md train-20250101-120000-abcd
    """
    directory = observe.directory(fmt)
    kind = report_file.format_of(form, out)
    found = finding.find(directory, run, on)
    with live_line.waiting(f"reading {found.id}"):
        made = reports.make(found)
    path = report_file.target(out, kind)
    if path is not None:
        written = report_file.write(made, kind, path)
        output.result(written, f"{written['path']}: {amounts.size(written['bytes'])}")
    elif output.as_json() and kind != "json":
        raise RequestError(f"--output json and a report as {kind} on stdout exclude each other", hint="give -o FILE")
    else:
        output.document(made, report_file.text(made, kind))
