"""Fixtures for the tests of the testbed itself; `slurm`, `slurm_accounting` and `ssh_hosts` are everybody's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from testbed import fixtures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed import Testbed


@pytest.fixture(scope="package")
def bare() -> Iterator[Testbed]:
    """Three hosts with nothing in them."""
    with fixtures.make(3) as testbed:
        yield testbed
