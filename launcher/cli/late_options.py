"""Warn about our options after SCRIPT, where they belong to the script."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.service.launch_options import LaunchOptions
from launcher.settings import config
from launcher.settings.options import JobOptions
from launcher.system.dataclass import fields

if TYPE_CHECKING:
    from collections.abc import Mapping


def warn(values: Mapping[str, Any], own: type) -> None:
    """Warn about arguments of the script that look like our options, unless the script knows them."""
    ours = {
        flag.removeprefix("--no-").removeprefix("--")
        for cls in (JobOptions, LaunchOptions, config.GlobalOptions, own)
        for item in fields(cls)
        for flag in (f"--{item.name.replace('_', '-')}", *item.metadata["flags"])
        if flag.startswith("--")
    } | {"nnodes"}
    args = list(values.get("args") or ())
    given = [arg.partition("=")[0].replace("_", "-") for arg in args[: args.index("--") if "--" in args else None]]
    late = [
        arg
        for arg in dict.fromkeys(given)
        if arg.startswith("--") and arg.removeprefix("--no-").removeprefix("--") in ours
    ]
    if late and (late := _unknown_to(values["script"], late)):
        comes, goes, it = ("comes", "goes", "it") if len(late) == 1 else ("come", "go", "they")
        output.warn(
            f"{', '.join(late)} {comes} after {values['script']}, so {it} {goes} to the script; ours go before it"
        )


def _unknown_to(script: str, options: list[str]) -> list[str]:
    """The options that the script does not name as an option, field or parameter; all our modules count."""
    from launcher.system import input_file, install

    paths = [script] if os.path.lexists(script) else list(install.data("train").rglob("*.py"))
    try:
        text = b"\n".join(map(input_file.read, paths)).decode(errors="replace").replace("_", "-")
    except OSError:
        return options
    named = r"""(--|["']){0}(?![\w-])|(?<![\w.-]){0}(:|=)"""
    return [option for option in options if not re.search(named.format(re.escape(option[2:])), text)]
