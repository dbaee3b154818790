"""`distlaunch config`."""

from __future__ import annotations

from typing import Annotated, Any, Optional

from launcher import output
from launcher.cli.parameters import OutputOption, flag
from launcher.console import tables
from launcher.service import effective
from launcher.settings import checks
from launcher.settings import config as settings


def config(
    cluster: Annotated[
        Optional[str], flag("--on", aliases=("--cluster",), metavar="NAME", help="Show the settings of this cluster.")
    ] = None,
    fmt: OutputOption = None,
) -> None:
    """Print every setting with its source.

    $ distlaunch config
    $ distlaunch config --on juno --output json
    """
    loaded = settings.load()
    general = loaded.resolve(settings.GlobalOptions, flags={"output": fmt})
    checks.blame("output", general["output"].layers[-1:], lambda fmt: output.setup(fmt=fmt))
    found = effective.effective(loaded, general, cluster)
    rows = [(key, _shown(item.value, key), item.source) for key, item in found.settings.items()]
    text = tables.table(("SETTING", "VALUE", "FROM"), rows)
    text += "\n" + tables.table(("SETTINGS FILE",), [(path,) for path in found.files]) if found.files else ""
    if found.clusters:
        text += "\n" + tables.table(("CLUSTER", "BACKEND"), [(item.name, item.backend) for item in found.clusters])
    output.result(found.to_json(), *text.splitlines())


def _shown(value: Any, name: str) -> Any:
    shown = effective.masked(value, name)
    if isinstance(shown, list):
        return ", ".join(shown) or None
    return str(shown).lower() if isinstance(shown, bool) else shown if shown != "" else None
