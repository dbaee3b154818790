"""This installation: where its data is, and how to install missing packages in the way that it was installed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import launcher

if TYPE_CHECKING:
    from types import ModuleType

_ROOT = Path(launcher.__file__).parents[1]
_DIST = "distlaunch"


def command(extra: str) -> str:
    """The command that installs one of our extras.

    Our name is on no package index: an installer that was asked for it would take whatever was uploaded there. So the
    command names this checkout, the wheel or directory that this was installed from, or else the packages themselves.
    """
    if (_ROOT / "pyproject.toml").is_file():
        return "pip install " + shlex.join(["-e", f"{_ROOT}[{extra}]"])
    return "pip install " + shlex.join(_from_where_it_came(extra) or _packages(extra))


def _from_where_it_came(extra: str) -> list[str]:
    """The file or directory that this installation was made from, if it still exists."""
    try:
        text = next(_ROOT.glob(f"{_DIST}-*.dist-info/direct_url.json")).read_text(encoding="utf-8")
        url = urlsplit(json.loads(text)["url"])
    except (StopIteration, OSError, ValueError, KeyError, TypeError):
        return []
    path = unquote(url.path)
    return [f"{path}[{extra}]"] if url.scheme == "file" and os.path.exists(path) else []


def _packages(extra: str) -> list[str]:
    """What the extra requires, by this installation's metadata."""
    from importlib.metadata import distributions

    found = next(iter(distributions(name=_DIST, path=[str(_ROOT)])), None)
    wanted = (
        re.fullmatch(r"([^;]+);\s*extra\s*==\s*['\"]([^'\"]+)['\"]\s*", text)
        for text in (found and found.requires) or ()
    )
    return [match[1].strip() for match in wanted if match and match[2] == extra] or [
        f"the packages of {_DIST}'s extra {extra}"
    ]


def data(directory: str) -> Path:
    """`train`, `playbooks` or `slurm_templates`: inside the installed package, or at the top of a checkout."""
    installed = _ROOT / "launcher/_data" / directory
    return installed if installed.is_dir() else _ROOT / directory


def bundled(path: str) -> ModuleType:
    """A file of `train` as a module: one that needs neither torch nor its neighbours."""
    spec = importlib.util.spec_from_file_location(f"launcher._data.{Path(path).stem}", data("train") / path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
