"""Fixtures that start agents, or a run's store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agent.ahead import bytecode, started  # noqa: F401 - fixtures
from tests.agent.harness import Runner
from tests.agent.meetings import elastic_run  # noqa: F401 - fixtures
from tests.agent.stores import Served
from tests.agent.warm import WarmStart

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Runner]:
    """Starts real agents on this machine."""
    yield from _runner(tmp_path, None)


@pytest.fixture(scope="session")
def warm_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmStart]:
    """A process that has imported torch, from which agents are forked."""
    server = WarmStart(tmp_path_factory.mktemp("warm"))
    yield server
    server.close()


@pytest.fixture
def warm_agents(warm_start: WarmStart, tmp_path: Path) -> Iterator[Runner]:
    """The same, with agents whose workers are forked from a process that has already imported torch."""
    directory = tmp_path / "warm"
    directory.mkdir()
    yield from _runner(directory, warm_start)


@pytest.fixture
def served() -> Iterator[Served]:
    """A store with its server."""
    found = Served()
    yield found
    for client in found.clients:
        client.close()


def _runner(tmp_path: Path, warm: WarmStart | None) -> Iterator[Runner]:
    runner = Runner(tmp_path, warm)
    yield runner
    runner.end_all()
