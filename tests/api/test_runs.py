"""Runs from Python: started, followed, ended, looked at again."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

import distlaunch
from launcher.agent.system import trust as rule
from launcher.service import waiting as waiting_service
from tests.loops import result_of
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 120


def waiting(**options: Any) -> distlaunch.Run:
    """A run whose workers wait."""
    run = distlaunch.submit("work.py", ["wait"], **options)
    assert next(line for line in run.logs(follow=True) if line.text == "waits")
    return run


def first_line(events: list[distlaunch.Event]) -> distlaunch.WorkerLine:
    return next(event for event in events if isinstance(event, distlaunch.WorkerLine))


def test_a_run_is_followed_to_its_end(here: Path) -> None:
    run = distlaunch.submit("work.py", ["a b"], nproc_per_node=2)
    events = list(run.events())

    assert {(event.rank, event.text) for event in events if isinstance(event, distlaunch.WorkerLine)} == {
        (0, "rank 0 a b"),
        (1, "rank 1 a b"),
    }
    states = [event.state for event in events if isinstance(event, distlaunch.StateChanged)]
    assert states[-1] == "success"
    assert states.index("running") < states.index("success")
    assert "rendezvous" in [event.name for event in events if isinstance(event, distlaunch.NodeEvent)]
    assert events[0] == distlaunch.Progress(phase="queued", done=0, total=1)
    assert not any(isinstance(event, distlaunch.Progress) for event in events[events.index(first_line(events)) :])
    result = run.wait(LIMIT_S)
    assert result == run.result
    assert (result.run, result.state, result.ok, result.exit_code, result.cause) == (run.id, "success", True, 0, None)
    assert (run.state, run.backend, run.command, run.tasks) == ("success", "local", ("work.py", "a b"), ())


def test_the_first_failure_is_known_live_and_from_the_record(here: Path) -> None:
    run = distlaunch.submit("work.py", ["fail"], nproc_per_node=2)
    live, recorded = list(run.events()), list(run.events())

    result = run.wait(LIMIT_S)
    assert (result.state, result.exit_code, result.ok) == ("failed", 1, False)
    cause = result.cause
    assert cause
    assert (cause.rank, cause.host, cause.failure_class, cause.exit_code) == (1, os.uname().nodename, "user_code", 1)
    assert cause.message == "ValueError: this is wrong"
    assert 'raise ValueError("this is wrong")' in str(cause.traceback)
    for events in (live, recorded):
        known = [event.cause for event in events if isinstance(event, distlaunch.CauseKnown)]
        assert known[-1].rank == 1
        assert events[-1] == distlaunch.StateChanged(state="failed")


def test_lines_are_those_of_the_ranks_that_are_asked_for(here: Path) -> None:
    run = distlaunch.submit("work.py", nproc_per_node=3)
    run.wait(LIMIT_S)

    for asked, told in ((1, {1}), ([0, 2], {0, 2}), ("1-2", {1, 2}), (None, {0, 1, 2}), (7, set())):
        assert {line.rank for line in run.logs(rank=asked)} == told
    with pytest.raises(distlaunch.SpecError, match="not a list of ranks"):
        list(run.logs(rank="x"))
    with pytest.raises(distlaunch.RequestError, match="no node 3"):
        list(run.logs(node=3))


def test_a_wait_that_times_out_leaves_the_run_and_cancel_ends_it(here: Path) -> None:
    run = waiting()

    for wait in (run.wait, lambda timeout: result_of(lambda: run.wait_async(timeout))):
        with pytest.raises(TimeoutError):
            wait(0.1)
    assert run.result is None
    assert run in distlaunch.runs(state="running")
    assert run.cancel() == run.result
    assert run.state == "cancelled"
    assert distlaunch.runs(state=("running", "starting")) == []


@pytest.mark.parametrize("content", [None, '{"backend": "local", "handle": 5}'])
def test_a_run_that_never_ends_is_not_waited_for(
    here: Path, content: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(here / "runs", "train-20250101-000000-abcd", created=1.0, result=None)
    if content is not None:
        (made.path / "run.json").write_text(content)
    monkeypatch.setattr(waiting_service, "_LOST_S", 0.0)
    run = distlaunch.get("train-20250101-000000-abcd")

    for wait in (run.wait, lambda timeout: result_of(lambda: run.wait_async(timeout)), lambda _: list(run.events())):
        with pytest.raises(distlaunch.RequestError, match="will not end"):
            wait(LIMIT_S)


def test_threads_may_submit_at_once(here: Path) -> None:
    def submit(_number: int) -> distlaunch.Run:
        return distlaunch.submit("work.py", nodes=2, nproc_per_node=1)

    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(submit, range(8)))

    assert [run.wait(LIMIT_S).state for run in runs] == ["success"] * 8


def test_a_moment_without_its_files_does_not_end_the_waiting(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = distlaunch.submit("work.py")
    run.wait(LIMIT_S)
    problems = [rule.Problem(f"{run.path}: Stale file handle", "")]
    monkeypatch.setattr(rule, "problem", lambda *_args, **_more: problems.pop() if problems else None)

    assert run.wait(LIMIT_S).ok
    assert not problems


def test_runs_are_listed_by_name_and_time(here: Path) -> None:
    first = distlaunch.submit("work.py", name="first")
    first.wait(LIMIT_S)
    between = datetime.now(tz=timezone.utc)
    second = distlaunch.submit("work.py", name="second")
    second.wait(LIMIT_S)

    assert distlaunch.runs(name="first") == distlaunch.runs(name="first", since=3600, state="success") == [first]
    assert distlaunch.runs(since=between) == distlaunch.runs(since=between, name="second") == [second]
    assert distlaunch.runs(since=timedelta(hours=1)) == distlaunch.runs(since="1h") == [first, second]
    assert distlaunch.runs(name="first", since=between) == []
    with pytest.raises(distlaunch.RequestError, match="no state 'sucess'"):
        distlaunch.runs(state="sucess")
    with pytest.raises(distlaunch.RequestError, match="since 'yesterday'"):
        distlaunch.runs(since="yesterday")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it may come before a file's `with`
def test_ctrl_c_ends_the_waiting_and_not_the_run(here: Path) -> None:
    run = waiting()
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # also where the tests were started with it ignored
    timer = threading.Timer(0.3, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    timer.start()

    with pytest.raises(KeyboardInterrupt):
        run.wait()
    timer.join()
    signal.signal(signal.SIGINT, before)
    assert run.state == "running"
    run.cancel(force=True)


def test_a_task_of_asyncio_that_waits_can_be_cancelled(here: Path) -> None:
    async def both(run: distlaunch.Run) -> None:
        task = asyncio.create_task(run.wait_async())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run = waiting()
    result_of(lambda: both(run))
    assert run.state == "running"
    run.cancel(force=True)


def test_a_signal_reaches_the_workers_and_a_run_that_has_ended_takes_none(here: Path) -> None:
    run = waiting()
    run.signal(signal.SIGUSR1)

    assert run.wait(LIMIT_S).ok
    assert "heard" in [line.text for line in run.logs()]
    with pytest.raises(distlaunch.RequestError, match="does not run"):
        run.signal(signal.SIGUSR1)
    assert run.requeue() == 1
    assert run.cancel(force=True) is not None


def test_threads_submit_and_wait_concurrently(here: Path) -> None:
    results: list[distlaunch.Result] = []
    threads = [
        threading.Thread(target=lambda: results.append(distlaunch.submit("work.py").wait(LIMIT_S))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [result.ok for result in results] == [True] * 3
    assert {run.id for run in distlaunch.runs()} == {result.run for result in results}
    assert distlaunch.get("last") == distlaunch.runs(limit=1)[0]


def test_nothing_is_printed_and_messages_are_logged(
    here: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (here / "distlaunch.toml").write_text('[defaults]\nenv = ["A=1"]\n')
    with caplog.at_level(logging.INFO, "distlaunch"):
        distlaunch.submit("work.py", ["fail"], nproc_per_node=2, name="An Odd Name").wait(LIMIT_S)

    assert capfd.readouterr() == ("", "")
    assert "name 'An Odd Name' becomes 'an-odd-name', as names have to be valid everywhere" in caplog.messages
    assert any("sets env" in message for message in caplog.messages)


def test_a_plan_is_what_is_sent_and_writes_nothing(here: Path) -> None:
    plan = distlaunch.plan(
        "work.py",
        nodes=(1, 2),
        nproc_per_node=2,
        env={"A": 1},
        time=timedelta(minutes=2),
        grace=1.5,
        warm=timedelta(minutes=10),
        hang_after=120,
        python=None,
        name="x",
    )

    assert not (here / "runs").exists()
    spec = plan.to_json()["plan"]["spec"]
    assert (spec["min_nodes"], spec["max_nodes"], spec["workers"], spec["env"]) == (1, 2, 2, {"A": "1"})
    assert (spec["time_limit_s"], spec["grace_s"], spec["run"]) == (120, 1.5, plan.id)
    assert (spec["warm_s"], spec["hang_after_s"]) == (600, 120)
    assert set(plan.render()) == {"spec.json", "start.sh"}
    assert plan.hosts == (os.uname().nodename,) * 2
    assert all(os.path.exists(path) for path in plan.write(here / "by-hand"))


def test_modules_and_programs_are_run(here: Path) -> None:
    assert distlaunch.submit("work", module=True).wait(LIMIT_S).ok
    run = distlaunch.submit("echo", ["a b"], program=True)
    assert run.wait(LIMIT_S).ok
    assert [line.text for line in run.logs()] == ["a b"]


def test_a_cluster_of_the_settings_needs_only_its_name(here: Path) -> None:
    (here / "distlaunch.toml").write_text('[clusters.lab]\nbackend = "local"\nnproc_per_node = 2\n')
    run = distlaunch.submit("work.py", cluster="lab")

    assert run.wait(LIMIT_S).ok
    assert run.cluster == "lab"
    assert {line.rank for line in run.logs()} == {0, 1}
    with pytest.raises(distlaunch.ConfigError, match="unknown cluster 'laboratory'"):
        distlaunch.submit("work.py", cluster="laboratory")


def test_a_run_that_does_not_exist_is_an_error_of_its_own(here: Path) -> None:
    with pytest.raises(distlaunch.RunNotFoundError):
        distlaunch.get("last")


def test_files_are_fetched(here: Path) -> None:
    (here / "writes.py").write_text("open('out.txt', 'w').write('out')\n")
    run = distlaunch.submit("writes.py")
    run.wait(timeout=60)

    fetched = run.fetch("*.txt", to=here / "copy")

    assert [file["path"] for file in fetched["files"]] == ["out.txt"]
    assert (here / "copy/out.txt").read_text() == "out"
    with pytest.raises(distlaunch.RequestError, match="nothing matches"):
        run.fetch("none")
