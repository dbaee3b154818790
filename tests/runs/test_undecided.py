"""What follows a run on several clusters when the launcher ends that would decide which of them gets it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from launcher.errors import RequestError
from launcher.runs import lock, records
from launcher.service import attaching, logs
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from launcher.results.race import Race
    from launcher.runs.records import Run

LOOKS = 20


@pytest.fixture
def queued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A run whose launcher ends while it is waited for."""
    race: Race = {"start": "first", "limit": 1, "claim": None, "wait_s": 300.0, "asked": [], "tries": []}
    run = records.note_race(make(tmp_path, "train-20250101-000000-abcd", created=time.time(), result=None), race)
    looks: list[float] = []
    with ExitStack() as held:
        held.enter_context(lock.hold(run.path, "run", submits=True))

        def ends(_seconds: float) -> None:
            held.close()
            looks.append(1)
            if len(looks) > LOOKS:
                pytest.fail("it is waited for although no process decides")

        monkeypatch.setattr(time, "sleep", ends)
        yield run


def test_attach_takes_over(queued: Run) -> None:
    assert attaching.is_undecided(attaching.submitted(queued))


def test_logs_names_the_command_that_takes_over(queued: Run) -> None:
    with pytest.raises(RequestError, match="its launcher, which would decide, has ended") as refused:
        logs.readable(queued, follow=True)

    assert refused.value.hint == f"distlaunch attach {queued.id}"
