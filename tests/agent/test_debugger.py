"""`--debug RANK`: an exception opens pdb in that rank's worker, and no rank is ended until the debugger is left."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from launcher.agent.group import workers

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.spec import Kind
    from tests.agent.harness import Run, Runner

FAILS = """
import os, sys, time
os.dup2(os.open(sys.argv[1], os.O_RDWR), 0)  # what stands for the terminal
sys.stdout = sys.stdin = None  # the script may have put anything there
def outer(number):
    inner()
def inner():
    raise ValueError("wrong number")
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while os.environ["RANK"] == "0" and not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    outer(6 * 7)
"""
ENDS = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
if sys.argv[1] == "exits":
    sys.exit(3)
signal.raise_signal(signal.SIGINT)
"""
"""Ends that open no debugger."""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_all_ranks_are_kept_until_the_debugger_is_left(agents: Runner, tmp_path: Path, start: str) -> None:
    keys, go = tmp_path / "keys", tmp_path / "go"
    os.mkfifo(keys)
    more = {"debug": 1, "heartbeat_s": 0.2}
    run = agents.start(FAILS, str(keys), str(go), nodes="2", request=more, start_method=start, max_restarts=1)
    run.until(lambda: run.of("debugger"))  # the other rank's failure waits 5 s for it, and no longer
    go.touch()
    run.until(lambda: run.of("worker_exited"))
    said = run.of("debugger")[0]
    assert (said["rank"], said["message"]) == (1, "ValueError: wrong number")
    assert [about["rank"] for about in run.of("worker_exited")] == [0], "it has failed, too, and is not debugged"
    _wait_for_heartbeats(run, 5)
    keys.write_text("up\np 'number', number\nq\n")
    run.wait()

    assert "('number', 42)" in run.stdout[1].decode(), (run.stdout, run.stderr)
    assert run.result() == "success", "no rank fails in the second round"
    assert run.of("restart")[0]["cause"]["message"] == "ValueError: wrong number"
    names = [name for _, name, _ in run.events]
    assert names.index("restart") > names.index("debugger")
    trace = run.stderr[1].decode()
    assert trace.count("Traceback") == 1
    assert "agent" not in trace, "only the script's own frames"


@pytest.mark.parametrize(("comes", "left", "turns"), [(4, 104, 104), (10, 104, 5)])
def test_a_failure_waits_for_a_rank_that_is_about_to_fail_and_then_until_its_debugger_is_left(
    monkeypatch: pytest.MonkeyPatch, comes: int, left: int, turns: int
) -> None:
    waits = mock.Mock()
    waits._job.debug = 1
    when = {workers._DEBUGGED: comes, workers._LEFT: left}
    waits._nodes.members.store.add = lambda name, _: int(waits.take_all.call_count >= when[name])
    # One call lasts 1 s.
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: float(waits.take_all.call_count)))

    workers.Workers._wait_for_debugger(waits)
    assert waits.take_all.call_count == turns


def test_a_failure_elsewhere_ends_a_rank_that_does_not_fail(agents: Runner) -> None:
    text = "import os, time\nif os.environ['RANK'] == '0':\n    raise OSError('alone')\ntime.sleep(600)\n"
    run = agents(text, nproc_per_node="2", request={"debug": 1})
    assert run.result() == "failed"
    assert run.cause()["message"] == "OSError: alone"
    assert not run.of("debugger")


@pytest.mark.parametrize(("how", "ended"), [("exits", {"exit_code": 3}), ("interrupted", {"signal": "SIGINT"})])
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_an_exit_and_an_interrupt_open_no_debugger(
    agents: Runner, how: str, ended: dict[str, object], start: str
) -> None:
    run = agents(ENDS, how, request={"debug": 0}, start_method=start)
    assert not run.of("debugger")
    told = run.of("worker_exited")[0]
    assert {name: told.get(name) for name in ended} == ended, (told, run.stderr)


@pytest.mark.parametrize("kind", ["script", "module"])
def test_a_spawned_worker_sees_the_same_with_and_without_debug(agents: Runner, tmp_path: Path, kind: Kind) -> None:
    seen = "sys.argv, sys.path, __file__, __name__, __package__, sorted(vars()), 'distlaunch_agent' in sys.modules"
    (tmp_path / "shown.py").write_text(f"import os, sys\nprint({seen})\n")
    name = "shown" if kind == "module" else str(tmp_path / "shown.py")
    started = [
        agents.start(name, "a", "--b", kind=kind, start_method="spawn", request=more) for more in ({}, {"debug": 0})
    ]
    said = [run.wait().stdout[0] for run in started]
    assert said[0] == said[1]
    assert said[0].endswith(b"False\n")


def _wait_for_heartbeats(run: Run, count: int) -> None:
    before = len(run.of("heartbeat"))
    run.until(lambda: len(run.of("heartbeat")) >= before + count)
