"""How many runs the chaos tests (tests/chaos) hit, and from which seed."""

from __future__ import annotations

import pytest

_TRY_S = 60
"""How long a try may take on average; each has limits of its own."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--chaos-seed` and `--chaos-tries`."""
    group = parser.getgroup("chaos")
    group.addoption("--chaos-seed", type=int, default=1, help="which faults runs are hit with")
    group.addoption("--chaos-tries", type=int, default=0, help="how many on each backend; by default a few")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give tests with more tries more time."""
    tries: int = config.getoption("--chaos-tries")
    for item in items if tries else ():
        if "score" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(300 + _TRY_S * tries))
