"""What a run does at a limit of processes (ulimit -u, pids.max), which counts threads as well."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

from launcher.agent.flight import recorder
from launcher.agent.node.flight import Dumps

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.agent.harness import Runner

REFUSES = """\
import os, threading
def start(thread, really=threading.Thread.start):
    refused = os.path.join(os.environ["TEST_REFUSED"], thread.name)
    if thread.name == "within" or (thread.name in ("samples", "errors", "stacks") and not os.path.exists(refused)):
        open(refused, "w").close()
        raise RuntimeError("can't start new thread")
    really(thread)
threading.Thread.start = start
"""

FAILS_ONCE = """\
import os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while not os.path.exists(os.path.join(sys.argv[1], "samples")):
        time.sleep(0.02)
    sys.exit(1)
time.sleep(600)
"""


def test_an_agent_that_can_start_no_thread_for_a_moment_continues_its_run(
    agents: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = tmp_path / "refused"
    refused.mkdir()
    (tmp_path / "sitecustomize.py").write_text(REFUSES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TEST_REFUSED", str(refused))
    run = agents.start(FAILS_ONCE, str(refused), samples=1, max_restarts=1)

    run.until(lambda: len(run.worker_pids()) == 2 and run.of("sample"))
    run.backend.signal(run.handle, run.backend.asks_for_stacks)
    run.until(lambda: run.of("stacks"))
    run.backend.signal(run.handle, run.backend.asks_for_stacks)
    run.until(lambda: len(run.of("stacks")) == 2)
    run.backend.cancel(run.handle)
    run.wait()

    assert [len(fields["groups"]) for fields in run.of("stacks")] == [0, 1]
    assert "the stacks cannot be read: no thread can be started" in run.warnings()
    assert run.result() == "cancelled", run.of("done")
    assert {path.name for path in refused.iterdir()} == {"samples", "errors", "stacks", "within"}


def test_dumps_that_no_thread_can_read_are_missing_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "Recorder", MagicMock())
    monkeypatch.setattr(threading.Thread, "start", MagicMock(side_effect=RuntimeError("can't start new thread")))
    out, taken = MagicMock(), MagicMock()
    dumps = Dumps(MagicMock(), out, MagicMock())

    dumps.take({}, taken)
    dumps.attend()

    taken.assert_called_once_with(None)
    out.event.assert_called_once_with("warning", message="the dumps cannot be read: no thread can be started")


REFUSES_WORKERS = """\
import os, sys
def fork(really=os.fork):
    if sys._getframe(1).f_code.co_filename.endswith("forkserver/workers.py"):
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return really()
os.fork = fork
"""


def test_a_worker_that_cannot_be_forked_is_named_with_the_limit(
    agents: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(REFUSES_WORKERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = agents("print(1)\n", nproc_per_node="2")

    assert run.result() == "failed"
    assert run.cause()["message"].endswith(
        "the worker of rank 0 cannot be forked: no more processes may be started (pids.max, ulimit -u)"
    )
