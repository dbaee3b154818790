"""Logs of a run whose cluster does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from launcher.errors import BackendUnavailableError
from launcher.runs import records
from launcher.service import logs, observe
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.runs.handle import Handle


class Away:
    """A backend that is not reached."""

    def refresh(self, _handle: Handle) -> None:
        raise BackendUnavailableError("the API server does not answer")


def test_lines_that_are_here_are_shown_while_the_cluster_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(observe, "backend_of", lambda _run: Away())
    run = make(tmp_path, "train-20250101-000000-abcd", result=None)
    run = records.record_handle(run, {"run_dir": str(run.path)})
    with pytest.raises(BackendUnavailableError):
        list(logs.blocks(run, [0], follow=False))

    run.stream_path(0).parent.mkdir(parents=True)
    run.stream_path(0).write_bytes(b"a line\n")
    shown = list(logs.blocks(run, [0], follow=False))

    assert shown == [(0, b"a line\n")]
    assert "the API server does not answer; this is what came before" in capfd.readouterr().err
