"""`distlaunch config`."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer

from launcher import backends, config_check, credentials, output
from launcher import config as settings
from launcher.cli._parameters import OutputOption  # noqa: TC001 - typer reads them
from launcher.cli._request import check_job, warn_of_variables
from launcher.options import JobOptions


def config(
    cluster: Annotated[Optional[str], typer.Option(metavar="NAME", help="As this cluster has them.", show_default=False)] = None,
    fmt: OutputOption = None,
) -> None:
    """Print every setting with where its value came from."""
    loaded = settings.load()
    general = loaded.resolve(settings.GlobalOptions, flags={"output": fmt})
    config_check.blame("output", general["output"].layers[-1:], lambda fmt: output.setup(fmt=fmt))
    # All are checked, so that this command finds a mistake before a launch does.
    warn_of_variables(loaded.env)
    config_check.check(settings.GlobalOptions, general, every=True)
    check_job(loaded.resolve(JobOptions), every=True)
    profiles = {name: loaded.cluster(name, _options_of) for name in loaded.cluster_names()}
    for profile in profiles.values():
        check_job(loaded.resolve(JobOptions, cluster=profile), every=True)
        options = _options_of(profile.backend)
        config_check.check(options, loaded.resolve(options, cluster=profile), every=True)
    chosen = loaded.cluster(cluster, _options_of) if cluster else None
    found = {**general, **loaded.resolve(JobOptions, cluster=chosen)}
    files = [file.path for file in loaded.files]
    if chosen:
        own = loaded.resolve(_options_of(chosen.backend), cluster=chosen)
        found |= own
        files += backends.load(chosen.backend)(settings.build(_options_of(chosen.backend), own)).settings_files()
    rows = [(key, _shown(item.value), item.source) for key, item in found.items()]
    text = output.table(("SETTING", "VALUE", "FROM"), rows)
    text += "\n" + output.table(("SETTINGS FILE",), [(path,) for path in files]) if files else ""
    if profiles:
        text += "\n" + output.table(("CLUSTER", "BACKEND"), [(item.name, item.backend) for item in profiles.values()])
    data = {
        "files": files,
        "settings": {key: {"value": _masked(item.value), "source": item.source} for key, item in found.items()},
        "clusters": {item.name: {"backend": item.backend} for item in profiles.values()},
    }
    output.result(data, *text.splitlines())


def _options_of(name: str) -> type:
    return backends.load(name).options


def _masked(value: Any) -> Any:
    return [credentials.masked(part) for part in value] if isinstance(value, tuple) else value


def _shown(value: Any) -> Any:
    if isinstance(value, tuple):
        return ", ".join(map(credentials.masked, value)) or None
    return str(value).lower() if isinstance(value, bool) else value if value != "" else None
