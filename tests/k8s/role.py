"""The rights that the documentation asks for."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.command import ROOT


def role_rules() -> list[dict[str, Any]]:
    """The Role as the documentation prints it."""
    text = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
    (block,) = [part for part in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "kind: Role" in part]
    rules: list[dict[str, Any]] = yaml.safe_load(block)["rules"]
    return rules
