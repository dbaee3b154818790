"""Restarts without hosts: which of them `--max-restarts` counts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from launcher.backends.ansible import requeue
from launcher.backends.ansible.backend import AnsibleBackend
from launcher.backends.ansible.options import AnsibleOptions
from launcher.errors import BackendUnavailableError
from launcher.runs import records
from launcher.service import again
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.backends.ansible.handle import AnsibleHandle

FAILED: Any = {"state": "failed", "exit_code": 1, "cause": {"class": "node"}, "nodes": []}


def test_restarts_that_fail_or_are_asked_for_leave_those_for_spares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: Any = AnsibleBackend(AnsibleOptions(spares=1))
    run = make(tmp_path, "train-20250101-000000-abcd", result=None)
    (run.path / "ansible/env").mkdir(parents=True)
    (run.path / "ansible/job.json").write_text(json.dumps({"max_restarts": 1}))
    (run.path / "ansible/env/extravars").write_text(json.dumps({"distlaunch_secrets": []}))
    handle: Any = {"run_dir": str(run.path), "hosts": ["n1"], "nodes": []}
    run = records.record_handle(run, handle)
    problems = [BackendUnavailableError("no host answers")]

    def start(*_: object) -> AnsibleHandle:
        if problems:
            raise problems.pop()
        return {"run_dir": str(run.path), "hosts": ["n1"], "nodes": []}

    monkeypatch.setattr(requeue, "start", start)
    with pytest.raises(BackendUnavailableError):
        again.start(run, backend, 1, doing="ansible", ended=FAILED)
    run = again.start(run, backend, 1, doing="requeue")
    assert backend.restarts_left(run.known) == 1

    run = again.start(run, backend, 2, doing="ansible", ended=FAILED)

    assert backend.restarts_left(run.known) == 0
    assert json.loads((run.path / "ansible/job.json").read_text())["attempt"] == 2
