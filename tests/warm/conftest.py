"""Runs that leave a fork server standing, in a directory of its own, and that use it."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.warm import records
from tests.agent.harness import Runner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.agent.harness import Run

TORCH = "import torch\nprint(torch.ones(1).item())\n"


class Warm(Runner):
    """Starts runs with `--warm`."""

    def __call__(self, script: str | Path, *args: str, warm: str = "10m", **options: Any) -> Run:
        """Start a run and wait until it has ended."""
        return self.start(script, *args, warm=warm, **options).wait()


@pytest.fixture(scope="session")
def place() -> Iterator[Path]:
    """The directory of servers for these tests: a socket's path must be short."""
    from pathlib import Path

    with tempfile.TemporaryDirectory(prefix="dlw") as directory:
        yield Path(directory)


@pytest.fixture
def warm(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Warm]:
    """Starts runs with `--warm`; what is left standing ends with the test."""
    monkeypatch.setenv(records.DIRECTORY, str(place))
    runner = Warm(tmp_path)
    yield runner
    runner.end_all()
    for standing in records.found():
        records.end(standing)


def start_of(run: Run) -> tuple[bool, str | None]:
    """Whether a run was started from a standing server, and why not."""
    told = run.of("warm_start")
    assert len(told) == 1, (run.events, run.agent_stderr())
    return told[0]["used"], told[0]["reason"]


def left_by(run: Run) -> int:
    """The pid of the server that a run has left."""
    told = run.of("warm_left")
    assert ["pid" in each for each in told] == [True], (told, run.agent_stderr())
    return int(told[0]["pid"])
