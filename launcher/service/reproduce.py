"""The command that starts a recorded run again, and its settings with their sources."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from launcher import backends
from launcher.errors import LaunchError
from launcher.payload import credentials
from launcher.service import effective
from launcher.service.launch_options import LaunchOptions
from launcher.settings.options import JobOptions
from launcher.system.dataclass import fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from launcher.results.cluster import Setting
    from launcher.runs.records import Run

_VARIABLES = "DISTLAUNCH_"
"""How the sources of values begin that the next launch will not have."""


def command(run: Run) -> str:
    """A command line for a shell; values that look like credentials are masked."""
    start = ["distlaunch", *(["run", "--on", run.cluster] if run.cluster else [run.backend or "local"])]
    script = list(map(str, run.command)) if not run.given.get("roles") else []
    module = ["-m"] if run.given.get("module") and script else []
    words = shlex.join([*start, *_options(run), *module, *credentials.masked_command(script)])
    return f"cd {shlex.quote(run.cwd)} && {words}" if run.cwd else words


def settings(run: Run) -> dict[str, Setting]:
    """All recorded settings, those that were set before the defaults; values that look like credentials are masked."""
    known = {
        str(name): each
        for name, each in run.settings.items()
        if isinstance(each, dict) and {"value", "source"} <= {*each}
    }
    order = sorted(known, key=lambda name: (known[name]["source"] == "default", name))
    return {
        name: {"value": effective.masked(known[name]["value"], name), "source": str(known[name]["source"])}
        for name in order
    }


def _options(run: Run) -> Iterator[str]:
    """The options that were given on the command line or by variables."""
    given = {name: value for name, value in run.given.items() if name not in ("script", "args", "module")}
    for name, each in settings(run).items():
        parts = each["source"].split(" + ")
        value = run.settings[name].get("given", each["value"])
        if any(part.startswith(_VARIABLES) for part in parts):
            given[name] = value
        elif any(part.startswith("flag") for part in parts):
            given.setdefault(name, value)
    declared = _declared(run)
    for name, value in given.items():
        flag = max(declared.get(name, {}).get("flags") or (f"--{name.replace('_', '-')}",), key=len)
        shown = effective.masked(value, name)
        for each in shown if isinstance(shown, list) else [shown]:
            if isinstance(each, bool):
                yield flag.partition("/")[0] if each else f"--no-{name.replace('_', '-')}"
            else:
                yield from (flag, str(each))


def _declared(run: Run) -> dict[str, Mapping[str, Any]]:
    """What each option's field tells the command line."""
    try:
        own = fields(backends.load(run.backend).options)
    except LaunchError:  # a backend that is not installed any more
        own = ()
    return {item.name: item.metadata for item in (*fields(JobOptions), *fields(LaunchOptions), *own)}
