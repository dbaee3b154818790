"""Signals reach every worker, every wait has a limit, and a failure ends the run on all nodes."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from launcher.agent.outputs import signs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.harness import Runner


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGALRM", "SIGWINCH"])
def test_signals_that_mean_something_to_scripts_are_passed_on(agents: Runner, name: str) -> None:
    run = agents.start(
        "import os, signal\n"
        f"signal.signal(signal.{name}, lambda *_: (print('got it', flush=True), os._exit(0)))\n"
        "print('ready', flush=True)\nwhile True: signal.pause()\n",
        nproc_per_node="2",
    )
    run.until(lambda: len(run.stdout) == 2)

    run.backend.signal(run.handle, getattr(signal, name))

    assert run.wait().result() == "success"
    assert list(run.stdout.values()) == [b"ready\ngot it\n"] * 2


def test_sigterm_gives_the_workers_the_deadline_and_their_grace_time(agents: Runner) -> None:
    run = agents.start(
        "import os, signal, sys, time\n"
        "def save(*_):\n"
        "    left = float(open(os.environ['DISTLAUNCH_DEADLINE_FILE']).read()) - time.time()\n"
        "    assert 5 < left < 10.1, left\n"
        "    time.sleep(0.2)\n    print('saved', flush=True)\n    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('ready', flush=True)\nwhile True: signal.pause()\n",
        nproc_per_node="2", nodes="2", max_restarts=3,
    )  # fmt: skip
    run.until(lambda: len(run.stdout) == 4)

    os.kill(run.agent_pid(1), signal.SIGTERM)  # one node only, which notifies the other
    run.until(lambda: len(run.of("stopping")) == 2)
    os.kill(
        run.agent_pid(0), signal.SIGTERM
    )  # as from a scheduler that is slower than our own message: not a second request

    assert run.wait().result() == "cancelled"
    assert list(run.stdout.values()) == [b"ready\nsaved\n"] * 4
    assert run.of("restart") == []


def test_a_script_that_ignores_sigterm_is_killed_at_the_deadline_or_by_a_second_signal(agents: Runner) -> None:
    deaf = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)\n"
    patient = agents.start(deaf, grace="1s")
    forced = agents.start(deaf, grace="300s")
    for run in (patient, forced):
        run.until(lambda run=run: run.stdout[0] == b"ready\n")  # type: ignore[misc]

    patient.backend.cancel(patient.handle)
    forced.backend.cancel(forced.handle, force=True)

    for run in (patient, forced):
        assert run.wait().result() == "cancelled"
        assert run.of("worker_exited")[0]["signal"] == "SIGKILL"


def test_the_time_limit_ends_the_run_as_a_timeout(agents: Runner) -> None:
    run = agents("import time\ntime.sleep(600)\n", time="1s", nodes="2", max_restarts=2)

    assert run.result() == "timeout"
    assert {fields["exit_code"] for fields in run.of("done")} == {124}
    assert run.cause()["class"] == "timeout"


STAYS = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)\n"
)


def test_after_the_time_limit_a_node_waits_for_a_fetch_though_its_workers_have_used_the_grace_time(
    agents: Runner,
) -> None:
    run = agents.start(STAYS, time="2s", grace="1s", request={"hold_s": 600.0, "hold_node": None})
    run.until(lambda: run.of("outputs_ready") or run.of("done"))
    (run.directory / signs.RELEASED).touch()

    assert run.wait().result() == "timeout"
    assert [fields["limit_s"] for fields in run.of("outputs_ready")] == [600.0]


def test_a_node_that_is_to_end_waits_for_a_fetch_no_longer_than_that_takes(agents: Runner) -> None:
    run = agents.start(STAYS, grace="3s", request={"hold_s": 600.0, "hold_node": None, "heartbeat_s": 0.1})
    run.until(lambda: run.stdout[0] == b"ready\n")

    run.backend.cancel(run.handle)

    assert run.wait().result() == "cancelled"
    assert all(fields["limit_s"] <= 1.0 for fields in run.of("outputs_ready"))
    events = [name for _, name, _ in run.events]
    assert "heartbeat" in events
    assert events[events.index("worker_exited") :].count("heartbeat") < 30  # one in 0.1 s


def test_a_run_that_is_cancelled_before_its_workers_exist_ends_at_once(agents: Runner, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    run = agents.start("print('never')\n", preload=("slow",), nodes="2")
    run.until(lambda: len(run.of("agent_started")) == 2)

    run.backend.cancel(run.handle)

    assert run.wait().result() == "cancelled"
    assert run.worker_pids() == []


def test_a_worker_may_end_long_before_the_others_and_need_not_use_torch_distributed(agents: Runner) -> None:
    run = agents.start(
        "import os, sys, time\n"
        "while os.environ['RANK'] == '1' and not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
        "print('end')\n",
        str(agents.directory / "go"), nodes="2",
    )  # fmt: skip
    run.until(lambda: run.of("worker_exited"))
    (agents.directory / "go").touch()

    assert run.wait().result() == "success"
    assert list(run.stdout.values()) == [b"end\n"] * 2


def test_a_failure_on_one_node_ends_the_others_with_sigterm_and_is_their_cause_too(agents: Runner) -> None:
    run = agents(
        "import os, signal, sys, time\n"
        "def end(*_):\n    print('heard SIGTERM', flush=True)\n    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "open(f'{sys.argv[1]}.{os.environ[\"RANK\"]}', 'w').close()\n"
        "if os.environ['RANK'] == '5':\n"
        "    while not all(os.path.exists(f'{sys.argv[1]}.{rank}') for rank in range(6)): time.sleep(0.01)\n"
        "    raise ValueError('only here')\n"
        "time.sleep(600)\n",
        str(agents.directory / "ready"), nodes="3", nproc_per_node="2",
    )  # fmt: skip

    assert run.stdout == dict.fromkeys(range(5), b"heard SIGTERM\n")
    assert run.of("warning") == []
    assert run.result() == "failed"
    for done in run.of("done"):
        assert (done["cause"]["node"], done["cause"]["rank"], done["cause"]["message"]) == (
            2,
            5,
            "ValueError: only here",
        )


@pytest.mark.torch
def test_the_first_failure_is_told_apart_from_those_that_follow_from_it(warm_agents: Runner) -> None:
    run = warm_agents(
        "import torch, torch.distributed as dist, time\n"
        "dist.init_process_group('gloo')\n"
        "dist.all_reduce(torch.ones(1))\n"
        "if dist.get_rank() == 3:\n"
        "    import atexit; atexit.register(time.sleep, 0.5)\n"
        "    dist.destroy_process_group()\n"
        "    raise KeyError('the real one')\n"
        "dist.all_reduce(torch.ones(1))\n",
        nodes="2", nproc_per_node="2",
    )  # fmt: skip

    assert run.result() == "failed"
    assert (run.cause()["rank"], run.cause()["message"], run.cause()["class"]) == (
        3,
        "KeyError: 'the real one'",
        "user_code",
    )
