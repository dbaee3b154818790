"""How often chaos strikes, and from which seed (tests/chaos)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--chaos-seed` and `--chaos-tries`."""
    group = parser.getgroup("chaos")
    group.addoption("--chaos-seed", type=int, default=1, help="which blows runs are dealt")
    group.addoption("--chaos-tries", type=int, default=0, help="how many on each backend; without it a few")
