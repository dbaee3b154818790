"""A run that was killed or stopped goes on as if nothing had happened; and what signals and bad losses do."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from trainer.stop import StopVote
from trainer.world import World

from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

FLAGS = ["--epochs", "3", "--log-every", "1", "--report", "none"]


def losses(folder: Path) -> dict[int, float]:
    """The loss of every step."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {record["step"]: record["loss"] for record in records if record["event"] == "train"}


@pytest.fixture(scope="module")
def whole(torchrun: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 36 steps on two ranks that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole")
    run = torchrun(2, "train.py", "--out", str(out), "--checkpoint-steps", "5", *FLAGS)
    assert run.returncode == 0, run.stderr
    return out


def test_after_a_kill_at_any_step_the_losses_are_the_same_bits(
    whole: Path, two_ranks: Any, torchrun: Any, tmp_path: Path
) -> None:
    step = int(np.random.default_rng().integers(7, 30))
    argv = ["--out", str(tmp_path), "--checkpoint-steps", "5", *FLAGS]
    with two_ranks("train.py", *argv) as processes:
        for line in processes[0].stdout:
            if line[:1] == " " and step <= (int(line.split()[1].replace(",", "")) + 127) // 128:
                break
        for process in processes:
            process.kill()

    run = torchrun(2, "train.py", *argv)

    assert run.returncode == 0, run.stderr
    assert "resumed from" in run.stdout, step
    assert losses(tmp_path) == losses(whole), f"killed at about step {step}"
    ours, theirs = newest(tmp_path), newest(whole)
    assert all(torch.equal(ours["model"][name], theirs["model"][name]) for name in theirs["model"])


def newest(out: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(max(out.glob("checkpoint-*.pt")), weights_only=True)
    return state


def test_with_another_number_of_ranks_the_rest_of_the_epoch_comes(whole: Path, alone: Any, tmp_path: Path) -> None:
    middle = next(
        path for path in whole.glob("checkpoint-*.pt") if torch.load(path, weights_only=True)["progress"]["epoch_samples"]
    )
    run = alone("train.py", "--out", str(tmp_path), "--resume", str(middle), *FLAGS)

    assert run.returncode == 0, run.stderr
    end = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert (end["event"], end["samples"]) == ("finished", 3 * 1438)
    ours, theirs = losses(tmp_path), losses(whole)
    assert all(ours[step] == pytest.approx(theirs[step], rel=1e-2) for step in ours)


def test_a_signal_on_one_rank_stops_all_and_the_deadline_is_known(two_ranks: Any, tmp_path: Path, monkeypatch: Any) -> None:
    deadline = tmp_path / "deadline"
    deadline.write_text(str(time.time() + 60))
    monkeypatch.setenv("DISTLAUNCH_DEADLINE_FILE", str(deadline))
    with two_ranks("train.py", "--out", str(tmp_path / "out"), "--epochs", "1000", "--report", "none") as processes:
        processes[0].stdout.readline()
        for line in processes[0].stdout:
            if line.startswith("    1 "):
                break
        processes[1].send_signal(signal.SIGUSR1)
        outputs = [process.communicate(timeout=60) for process in processes]

    assert [process.returncode for process in processes] == [143, 143], outputs
    last = outputs[0][0].splitlines()[-1]
    assert last.startswith("SIGUSR1: stopped at step ")
    assert f"saved {tmp_path}/out/checkpoint-" in last
    assert not list((tmp_path / "out").glob("*.part"))


def test_a_second_signal_ends_a_rank_at_once(two_ranks: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Rank 1 is stopped, so that the vote of rank 0 waits for ever."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with two_ranks("train.py", "--out", str(tmp_path), "--epochs", "1000", "--report", "none") as (first, second):
        for line in first.stdout:
            if line.startswith("    1 "):
                break
        second.send_signal(signal.SIGSTOP)

        def ended() -> bool:
            first.send_signal(signal.SIGTERM)
            return first.poll() is not None

        wait_until("the end of rank 0", ended, limit_s=30)
        second.send_signal(signal.SIGCONT)

    assert first.returncode == 143
    assert all(torch.load(path, weights_only=True) for path in tmp_path.glob("checkpoint-*.pt"))


def test_signals_together_are_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when Slurm and the agent both signal a worker."""
    kept = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR1)
    monkeypatch.setattr("os._exit", lambda status: pytest.fail(f"ended with {status}"))
    try:
        vote = StopVote(World(0, 0, 1, torch.device("cpu")))
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR1)
        wait_until("the first to be heard", lambda: vote._number == signal.SIGTERM, limit_s=10)
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, kept[0])
        signal.signal(signal.SIGUSR1, kept[1])


def test_a_loss_that_is_no_number_names_step_rank_samples_and_checkpoint(torchrun: Any, tmp_path: Path) -> None:
    run = torchrun(2, "train.py", "--out", str(tmp_path), "--lr", "1e30", "--optimizer", "sgd", "--report", "none")

    assert run.returncode == 1
    assert "the loss is nan at step" in run.stderr
    assert "on rank " in run.stderr
    assert ", samples " in run.stderr
    assert "newest checkpoint: " in run.stderr
    assert not list(tmp_path.glob("*.part"))
    assert all(losses_are_numbers(path) for path in tmp_path.glob("checkpoint-*.pt"))


def losses_are_numbers(path: Path) -> bool:
    weights = torch.load(path, weights_only=True)["model"]
    return all(bool(tensor.isfinite().all()) for tensor in weights.values())
