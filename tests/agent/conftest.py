"""The agents fixture."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from launcher.agent import processes
from tests.agent.harness import Runner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Runner]:
    """Starts real agents on this machine."""
    runner = Runner(tmp_path)
    yield runner
    for run in runner.runs:
        run.backend.cancel(run.handle, force=True)
    for run in runner.runs:
        run.close()
        limit = time.monotonic() + 20
        while "running" in run.backend.liveness(run.handle).nodes and time.monotonic() < limit:
            time.sleep(0.05)
        for agent in run.handle["agents"]:
            if processes.start_ticks(agent["pid"]) == agent["start_ticks"]:
                os.kill(agent["pid"], signal.SIGKILL)
