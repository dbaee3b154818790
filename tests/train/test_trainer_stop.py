"""Signals, deadlines and bad losses end a run."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from testbed.waiting import wait_until
from tests.train.held import FLAGS, held, newest, origin, records, took

if TYPE_CHECKING:
    from pathlib import Path

    from tests.train.conftest import Start, Together

pytestmark = pytest.mark.torch


def test_a_deadline_that_nothing_can_be_saved_by_is_kept(script: Any, start: Start, tmp_path: Path) -> None:
    """The disk does not respond: the run ends by itself, and reports its newest checkpoint."""
    deadline = tmp_path / "deadline"
    env = {"DISTLAUNCH_DEADLINE_FILE": str(deadline)}
    out = tmp_path / "out"
    driver = script("step", 8)
    driver.write_text(driver.read_text().replace("sys.exit(train", SLOW_DISK + "sys.exit(train"))
    with start(2, driver, "--out", str(out), *FLAGS, env=env, watched=False) as running:
        held(running)
        deadline.write_text(str(time.time() + 2.0))
        running.signal(0, signal.SIGTERM)
        running.signal(0, signal.SIGCONT)
        done = running.done()

    assert done.codes == [143, 143], done.stderr
    assert "was not complete at the deadline; the newest is None" in done.errs[0]
    assert done.outs[0].splitlines()[-1].endswith("; nothing saved")


@pytest.mark.parametrize("signalled", [(0, 1), (1,)])
def test_a_deadline_is_kept_if_the_signal_comes_while_a_checkpoint_waits_for_the_disk(
    script: Any, start: Start, tmp_path: Path, signalled: tuple[int, ...]
) -> None:
    """The next checkpoint within the epoch waits for the one before it. One rank's signal is enough."""
    deadline, out = tmp_path / "deadline", tmp_path / "out"
    driver = script()
    driver.write_text(driver.read_text().replace("sys.exit(train", SLOW_DISK + WAITS + "sys.exit(train"))
    env = {"DISTLAUNCH_DEADLINE_FILE": str(deadline)}
    with start(2, driver, "--out", str(out), *FLAGS, env=env, watched=False) as running:
        running.line(0, "waits for the disk")
        deadline.write_text(str(time.time() + 2.0))
        for rank in signalled:
            running.signal(rank, signal.SIGTERM)
        done = running.done()

    assert done.codes == [143, 143], done.stderr
    assert "was not complete at the deadline; the newest is None" in done.errs[0]


@pytest.mark.parametrize("sync", ["ddp", "async-parameter-server"])
def test_a_deadline_is_kept_if_the_signal_comes_while_the_last_checkpoint_is_written(
    script: Any, start: Start, tmp_path: Path, sync: str
) -> None:
    deadline, out = tmp_path / "deadline", tmp_path / "out"
    driver = script()
    driver.write_text(driver.read_text().replace("sys.exit(train", SLOW_DISK + "sys.exit(train"))
    env = {"DISTLAUNCH_DEADLINE_FILE": str(deadline)}
    flags = ("--out", str(out), "--epochs", "1", "--report", "none", "--sync", sync)
    with start(2, driver, *flags, env=env, watched=False) as running:
        running.line(0, "the disk is slow")
        deadline.write_text(str(time.time() + 2.0))
        running.signal(1, signal.SIGTERM)
        done = running.done()

    assert done.codes == [143, 143], done.stderr
    assert done.errs[0] == "the last checkpoint was not complete at the deadline; the newest is None\n"
    assert done.errs[1] == ""
    assert done.outs[0].splitlines()[-1].endswith("; nothing saved")


WAITS = """
saves = []

def saving(saver, *args, save=checkpoint.Checkpoints.save, **more):
    saves.append(saver)
    if os.environ["RANK"] == "0" and len(saves) == 2:
        os.write(1, b"waits for the disk\\n")
    return save(saver, *args, **more)

checkpoint.Checkpoints.save = saving
"""

SLOW_DISK = """
import threading
from trainer import checkpoint

def slow(*_):
    os.write(1, b"the disk is slow\\n")
    threading.Event().wait()

checkpoint.write_whole = slow
"""


@pytest.mark.parametrize("epochs", ["2", "1"])
def test_a_signal_while_the_end_of_an_epoch_waits_to_be_saved_keeps_its_accuracy(
    script: Any, start: Start, ranks: Together, tmp_path: Path, epochs: str
) -> None:
    """Of the last epoch, too. The disk is slow, and there is no deadline."""
    out, disk = tmp_path / "out", tmp_path / "disk"
    os.mkfifo(disk)
    driver = script()
    slow = WAITS + SLOW_AT_FIRST.format(disk=str(disk))
    driver.write_text(driver.read_text().replace("sys.exit(train", slow + "sys.exit(train"))
    flags = ("--out", str(out), *FLAGS, "--checkpoint-steps", "10", "--epochs", epochs)
    with start(2, driver, *flags) as running:
        running.line(0, "waits for the disk")
        running.signal(1, signal.SIGTERM)
        running.line(0, "stops")
        disk.write_text("writes again")
        done = running.done()

    assert (done.codes, done.errs) == ([143, 143], ["", ""])
    saved = out / "checkpoint-00000012.pt"
    assert done.outs[0].splitlines()[-1].endswith(f"; saved {saved}")
    (accuracy,) = [one["accuracy"] for one in records(out) if one["event"] == "test"]
    assert json.loads((out / "best.json").read_text()) == {"checkpoint": saved.name, "accuracy": accuracy}

    again = ranks(2, script(), *flags)

    assert again.codes == [0, 0], again.stderr
    assert origin(again) == f"resumed from {saved}: 1 epoch done"
    assert len([one for one in records(out) if one["event"] == "test"]) == int(epochs)


SLOW_AT_FIRST = """
from pathlib import Path

def write(*args, write=checkpoint.write_whole, left=[True]):
    if left:
        left.pop()
        Path({disk!r}).read_text()
    write(*args)

def stopped(*args, stopped=train.Trainer.stopped):
    os.write(1, b"stops\\n")
    return stopped(*args)

checkpoint.write_whole, train.Trainer.stopped = write, stopped
"""


def test_a_second_signal_ends_a_rank_at_once(script: Any, start: Start, tmp_path: Path) -> None:
    """Rank 0 is stopped, so that the vote of rank 1 waits for ever."""
    with start(2, script("step, all written", 7), "--out", str(tmp_path), *FLAGS, watched=False) as running:
        held(running)

        def ended() -> bool:
            running.signal(1, signal.SIGTERM)
            return running.has_ended(1)

        wait_until("the end of rank 1", ended, limit_s=60)
        assert running.ended(1) == 143
        assert not running.has_ended(0)
        running.kill()
        assert running.done().errs[1] == "second signal: ended at once, without a further checkpoint\n"

    assert newest(tmp_path)["progress"]["step"] == 5


def test_signals_in_quick_succession_are_one_request(script: Any, start: Start, tmp_path: Path) -> None:
    """As when Slurm and the agent both signal a worker."""
    numbers = (signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1)
    driver = script("step", 3)
    driver.write_text(driver.read_text().replace("sys.exit(train", AT_ANY_TIME + "sys.exit(train"))
    with start(2, driver, "--out", str(tmp_path), *FLAGS) as running:
        held(running)
        for number in numbers:
            running.signal(1, number)
            took(running, 1)
        running.signal(0, signal.SIGCONT)
        done = running.done()

    assert done.codes == [143, 143], done.stderr
    assert done.errs[1] == ""
    step = newest(tmp_path)["progress"]["step"]
    saved = f"saved {tmp_path}/checkpoint-{step:08d}.pt"
    assert done.outs[0].splitlines()[-1] == f"SIGTERM: stopped at step {step} after {step * 128:,} samples; {saved}"


AT_ANY_TIME = """
from trainer import stop
stop.TOGETHER_S = 600.0
"""
"""However long the test takes to send them."""


def test_no_rank_leaves_before_the_checkpoint_of_all_is_written(script: Any, start: Start, tmp_path: Path) -> None:
    """A signal to the workers alone: their launcher, which knows of no stop, ends the others when one has exited."""
    out, disk = tmp_path / "out", tmp_path / "disk"
    os.mkfifo(disk)
    driver = script("step", 3)
    slow = BUSY_DISK.format(disk=str(disk))
    driver.write_text(driver.read_text().replace("sys.exit(train", slow + "sys.exit(train"))
    with start(2, driver, "--out", str(out), *FLAGS, "--checkpoint-steps", "99") as running:
        held(running)
        for rank in (1, 0):
            running.signal(rank, signal.SIGUSR1)
        took(running, 1)
        running.signal(0, signal.SIGCONT)
        running.line(1, "waits for the others")
        disk.write_text("writes again")
        done = running.done()

    assert (done.codes, done.errs) == ([143, 143], ["", ""])
    (saved,) = out.glob("checkpoint-*")
    assert done.outs[0].splitlines()[-1].endswith(f"; saved {saved}")


def test_a_second_signal_to_a_rank_that_leaves_is_not_reported(script: Any, start: Start, tmp_path: Path) -> None:
    """A launcher sends it as another rank has exited; the checkpoint is complete."""
    driver = script("step", 3)
    driver.write_text(driver.read_text().replace("sys.exit(train", LEAVES + "sys.exit(train"))
    with start(1, driver, "--out", str(tmp_path), *FLAGS) as running:
        held(running)
        running.signal(0, signal.SIGTERM)
        running.signal(0, signal.SIGCONT)
        running.line(0, "leaves")
        running.signal(0, signal.SIGTERM)
        done = running.done()

    assert (done.codes, done.errs) == ([143], [""])
    assert newest(tmp_path)["progress"]["step"] >= 3


LEAVES = """
from trainer import stop
stop.TOGETHER_S = 0.0

def close(trainer, close=train.Trainer.close):
    close(trainer)
    os.write(1, b"leaves\\n")
    threading.Event().wait()

train.Trainer.close = close
"""


BUSY_DISK = """
from pathlib import Path
from trainer import checkpoint, log, stop, world
stop.TOGETHER_S = 0.0  # any further signal is a second one

def write(*args, write=checkpoint.write_whole):
    Path({disk!r}).read_text()
    write(*args)

def stopped(*args, stopped=log.RunLog.stopped):
    stopped(*args)
    world.World.sum = waits

def waits(self, *values, total=world.World.sum):
    os.write(1, b"waits for the others\\n" if self.rank else b"")
    return total(self, *values)

checkpoint.write_whole, log.RunLog.stopped = write, stopped
"""


def test_a_loss_that_is_not_a_number_is_reported_with_step_rank_samples_and_checkpoint(
    ranks: Together, tmp_path: Path
) -> None:
    flags = ("--lr", "1e3", "--optimizer", "sgd", "--checkpoint-steps", "1", "--keep", "99", "--report", "none")

    done = ranks(2, "train.py", "--out", str(tmp_path), *flags)

    assert done.returncode == 1
    assert "the loss is nan at step" in done.stderr
    assert "on rank " in done.stderr
    assert ", samples " in done.stderr
    saved = sorted(tmp_path.glob("checkpoint-*.pt"))
    assert f"newest checkpoint: {saved[-1]}. " in done.stderr
    told = next(error for error in done.errors if error)
    assert "TrainingError: the loss is nan at step" in json.dumps(told), "what torchrun would show"
    assert not list(tmp_path.glob("*.part"))
    assert all(map(weights_are_numbers, saved))


def weights_are_numbers(path: Path) -> bool:
    import torch

    weights = torch.load(path, weights_only=True)["model"]
    return all(bool(tensor.isfinite().all()) for tensor in weights.values())
