"""A hook of mkdocs: the page of each backend, `docs/PACKAGE.md`, is in the navigation because it exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
AFTER = {"Configuration": "configuration.md"}
"""The entry of the section Reference that backends' pages follow."""


def on_config(config: Any) -> Any:
    """Add the pages, in the order of their names; a page's heading is its title."""
    reference = next(section["Reference"] for section in config["nav"] if "Reference" in section)
    packages = (path.parent.name for path in sorted(ROOT.glob("launcher/backends/*/backend.py")))
    pages = [f"{name}.md" for name in packages if (ROOT / "docs" / f"{name}.md").exists()]
    place = reference.index(AFTER) + 1
    reference[place:place] = pages
    return config
