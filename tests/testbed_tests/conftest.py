"""Fixtures for the tests of the testbed itself; all tests have `slurm`, `slurm_accounting` and `ssh_hosts`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from testbed import fixtures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed import Testbed


@pytest.fixture(scope="package")
def bare() -> Iterator[Testbed]:
    """Three hosts without services."""
    with fixtures.make(3) as testbed:
        yield testbed
