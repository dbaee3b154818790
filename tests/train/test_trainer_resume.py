"""A run that was killed or stopped, wherever that was, goes on as if nothing had happened; and what signals and bad losses do."""

from __future__ import annotations

import json
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from testbed.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.train.conftest import Alone, Start, Together
    from tests.train.ranks import Done, Ranks

pytestmark = pytest.mark.torch

FLAGS = ("--epochs", "2", "--log-every", "1", "--report", "none", "--checkpoint-steps", "5", "--keep", "9", "--ema-decay", "0.9")

HELD = """
import os, random, signal, sys, threading
sys.path.insert(0, {scripts!r})
import numpy as np, torch, train
from trainer import checkpoint, loop, saved

at, number = {at!r}, {number!r}
savers = []

def remembered(saver, *args, save=checkpoint.Checkpoints.save, **more):
    savers[:] = [saver]
    return save(saver, *args, **more)

checkpoint.Checkpoints.save = remembered

def hold():
    if os.environ["RANK"] == "0":
        if at in ("step, all written", "evaluation"):
            savers[0].poll(None)
        os.write(1, b"held\\n")  # in one piece, whatever other threads print
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this very thread goes no further

def before(what, call, which=lambda *_: True):
    left = [number]
    def held(*args, **more):
        if at == what and which(*args):
            left[0] -= 1
            if left[0] == 0:
                hold()
        return call(*args, **more)
    return held

def noisy(trainer, batch, step=train.Trainer.train_step):
    noise = torch.rand(1).item() + random.random() + np.random.rand()  # as dropout and augmentation draw
    batch.images.add_(1e-3 * noise)
    return step(trainer, batch)

train.Trainer.train_step = before("step", before("step, all written", noisy))
loop.evaluate = before("evaluation", loop.evaluate)
os.replace = before("rename", os.replace, lambda old, new: "checkpoint-" in str(new))
saved.sync_to_disk = before("disk", saved.sync_to_disk, lambda path: path.suffix == ".part")
sys.exit(train.main())
"""
"""train.py whose steps depend on all random numbers; rank 0 says where it is and stops itself there, the `number`th time."""


@pytest.fixture(scope="module")
def script(scripts: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Write `HELD` with where to hold."""

    def write(at: str = "", number: int = 0) -> Path:
        path: Path = tmp_path_factory.mktemp("held") / "driver.py"
        path.write_text(HELD.format(scripts=str(scripts), at=at, number=number))
        return path

    return write


def records(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def losses(directory: Path) -> dict[tuple[str, int], float]:
    """The loss of every step and evaluation."""
    return {(one["event"], one["step"]): one["loss"] for one in records(directory) if one["event"] in ("train", "test")}


def newest(out: Path) -> dict[str, Any]:
    import torch

    state: dict[str, Any] = torch.load(max(out.glob("checkpoint-*.pt")), weights_only=True)
    return state


def origin(done: Done) -> str:
    """The line that says from where a run went on."""
    return next(line for line in done.outs[0].splitlines() if line.startswith(("resumed from", "no checkpoint")))


@pytest.fixture(scope="module")
def whole(ranks: Together, script: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 24 steps on two ranks that nobody disturbed."""
    out: Path = tmp_path_factory.mktemp("whole")
    done = ranks(2, script(), "--out", str(out), *FLAGS)
    assert done.codes == [0, 0], done.stderr
    return out


def is_whole(out: Path, whole: Path) -> None:
    """All losses are the same bits, and so are the weights, their average and the optimizer's state."""
    import torch

    assert len(losses(whole)) == 24 + 2
    assert losses(out) == losses(whole)
    ours, theirs = newest(out), newest(whole)
    for name in ("model", "average"):
        assert all(torch.equal(ours[name][key], value) for key, value in theirs[name].items()), name
    moments = theirs["optimizer"]["state"]
    assert all(torch.equal(ours["optimizer"]["state"][key]["exp_avg"], one["exp_avg"]) for key, one in moments.items())


@pytest.mark.parametrize(
    ("at", "number", "goes_on_from", "left"),
    [
        ("step, all written", 9, "5.pt: 0 epochs and 640 samples of the next done", 0),
        ("evaluation", 1, "10.pt: 0 epochs and 1,280 samples of the next done", 0),
        ("disk", 3, "10.pt: 0 epochs and 1,280 samples of the next done", 1),
        ("rename", 4, "12.pt: 1 epoch done", 1),
    ],
)
def test_after_a_kill_at_any_moment_the_losses_are_the_same_bits(
    at: str, number: int, goes_on_from: str, left: int, whole: Path, start: Start, ranks: Together, script: Any, tmp_path: Path
) -> None:
    """In the middle of a step, in an evaluation, while a checkpoint is on its way to the disk, and before it has its name."""
    argv = ("--out", str(tmp_path), *FLAGS)
    with start(2, script(at, number), *argv) as running:
        held(running)
        running.kill()
    assert len(list(tmp_path.glob("checkpoint-*.part"))) == left, "not killed where it should have been"

    done = ranks(2, script(), *argv)

    assert done.codes == [0, 0], done.stderr
    assert (
        origin(done)
        == f"resumed from {tmp_path}/checkpoint-{goes_on_from.partition('.')[0]:0>8}.{goes_on_from.partition('.')[2]}"
    )
    is_whole(tmp_path, whole)
    assert not list(tmp_path.glob("*.part"))


LATE = """
from trainer import checkpoint, snapshot
free = threading.Event()

def late(self, state, changing=(), take=snapshot.Snapshot.take):
    free.clear()
    copy, copied = take(self, state, changing)
    return copy, lambda: (free.wait(), copied())

def waited(*args, wait=checkpoint.wait):
    free.set()
    return wait(*args)

def stepped(trainer, step=train.Trainer.optimizer_step):
    step(trainer)
    free.set()

snapshot.Snapshot.take, checkpoint.wait, train.Trainer.optimizer_step = late, waited, stepped
"""
"""The copy for a checkpoint is not made before somebody waits for it, or the next step has changed the weights."""


def test_a_step_waits_for_the_copy_that_a_checkpoint_takes_of_the_weights(
    whole: Path, script: Any, start: Start, tmp_path: Path
) -> None:
    import torch

    driver = script("step", 11)  # the second checkpoint is begun, so the first is complete
    driver.write_text(driver.read_text().replace("sys.exit(train", LATE + "sys.exit(train"))
    with start(2, driver, "--out", str(tmp_path), *FLAGS) as running:
        held(running)
        running.kill()

    ours, theirs = (torch.load(out / "checkpoint-00000005.pt", weights_only=True)["model"] for out in (tmp_path, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_with_another_number_of_ranks_the_rest_of_the_epoch_comes(ranks: Together, alone: Alone, tmp_path: Path) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    argv = ("--epochs", "1", "--log-every", "1", "--report", "none", "--checkpoint-steps", "7")
    assert ranks(2, "train.py", "--out", str(two), *argv).codes == [0, 0]

    run = alone("train.py", "--out", str(one), "--resume", str(two / "checkpoint-00000007.pt"), *argv)

    assert run.returncode == 0, run.stderr
    assert "resumed from" in run.stdout
    assert records(one)[-1]["event"] == "finished"
    assert [row["samples"] for row in records(one) if row["event"] == "train"] == [8 * 128, 9 * 128, 10 * 128, 11 * 128, 1438]
    ours, theirs = losses(one), losses(two)
    assert all(ours[step] == pytest.approx(theirs[step], rel=1e-2) for step in ours)


def test_a_signal_on_one_rank_stops_all_which_go_on_from_there(
    whole: Path, script: Any, start: Start, ranks: Together, tmp_path: Path
) -> None:
    """The signal comes in the middle of an epoch, and there is a deadline."""
    deadline = tmp_path / "deadline"
    deadline.write_text(str(time.time() + 600))
    env = {"DISTLAUNCH_DEADLINE_FILE": str(deadline)}
    out = tmp_path / "out"
    with start(2, script("step", 3), "--out", str(out), *FLAGS, env=env) as running:
        held(running)
        running.signal(1, signal.SIGUSR1)
        took(running, 1)
        running.signal(0, signal.SIGCONT)
        done = running.done()

    assert done.codes == [143, 143], done.stderr
    assert done.outs[1] == done.errs[1] == ""
    (end,) = [one for one in records(out) if one["event"] == "stopped"]
    assert 3 <= end["step"] < 24, "it did not stop"
    path = f"{out}/checkpoint-{end['step']:08d}.pt"
    assert done.outs[0].splitlines()[-1] == (
        f"SIGUSR1: stopped at step {end['step']} after {end['samples']:,} samples; saved {path}"
    )
    assert not list(out.glob("*.part"))

    again = ranks(2, script(), "--out", str(out), *FLAGS)

    assert again.codes == [0, 0], again.stderr
    assert origin(again).startswith(f"resumed from {path}: ")
    is_whole(out, whole)


def held(running: Ranks) -> None:
    """Wait until rank 0 has stopped itself."""
    running.line(0, "held")
    wait_until("rank 0 to stop", lambda: "\tT (" in running.status(0), limit_s=60)


def took(running: Ranks, rank: int) -> None:
    """Wait until no signal is on its way to a rank."""
    pending = re.compile(r"^(SigPnd|ShdPnd):\s+0*[1-9a-f]", re.MULTILINE)
    wait_until(f"rank {rank} to take the signal", lambda: not pending.search(running.status(rank)), limit_s=60)


def test_a_deadline_that_nothing_can_be_saved_by_is_kept(script: Any, start: Start, tmp_path: Path) -> None:
    """The disk does not answer: the run ends by itself, and says what its newest checkpoint is."""
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


SLOW_DISK = """
import threading
from trainer import checkpoint
checkpoint.write_whole = lambda *_: threading.Event().wait()
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


def test_signals_together_are_one_request(script: Any, start: Start, tmp_path: Path) -> None:
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


def test_a_loss_that_is_no_number_names_step_rank_samples_and_checkpoint(ranks: Together, tmp_path: Path) -> None:
    done = ranks(2, "train.py", "--out", str(tmp_path), "--lr", "1e30", "--optimizer", "sgd", "--report", "none")

    assert done.returncode == 1
    assert "the loss is nan at step" in done.stderr
    assert "on rank " in done.stderr
    assert ", samples " in done.stderr
    assert "newest checkpoint: " in done.stderr
    told = next(error for error in done.errors if error)
    assert "TrainingError: the loss is nan at step" in json.dumps(told), "what torchrun would show"
    assert not list(tmp_path.glob("*.part"))
    assert all(weights_are_numbers(path) for path in tmp_path.glob("checkpoint-*.pt"))


def weights_are_numbers(path: Path) -> bool:
    import torch

    weights = torch.load(path, weights_only=True)["model"]
    return all(bool(tensor.isfinite().all()) for tensor in weights.values())


def test_shards_of_a_checkpoint_are_complete_or_not_there(
    script: Any, start: Start, ranks: Together, scripts: Path, tmp_path: Path
) -> None:
    """With --sync fsdp: a kill while shards are written, and a run that goes on from those before."""
    argv = ("--sync", "fsdp", "--epochs", "1", "--log-every", "1", "--report", "none", "--checkpoint-steps", "4", "--keep", "9")
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "out"
    assert ranks(2, script(), "--out", str(undisturbed), *argv).codes == [0, 0]
    driver = script("metadata", 2)
    driver.write_text(driver.read_text().replace("sys.exit(train", LAST_FILE + "sys.exit(train"))
    with start(2, driver, "--out", str(out), *argv) as running:
        held(running)
        running.kill()
    assert (out / "checkpoint-00000008").is_dir(), "not killed where it should have been"
    assert not (out / "checkpoint-00000008" / ".metadata").exists()

    done = ranks(2, script(), "--out", str(out), *argv)

    assert done.codes == [0, 0], done.stderr
    assert origin(done) == f"resumed from {out}/checkpoint-00000004: 0 epochs and 512 samples of the next done"
    assert losses(out) == losses(undisturbed)
    assert (out / "checkpoint-00000008" / ".metadata").exists()


LAST_FILE = """
from torch.distributed.checkpoint import filesystem
writer = filesystem.FileSystemWriter
writer.finish = before("metadata", writer.finish)
"""


def test_shards_that_cannot_be_written_are_said_and_the_run_goes_on(script: Any, ranks: Together, tmp_path: Path) -> None:
    driver = script()
    driver.write_text(driver.read_text().replace("sys.exit(train", NO_ROOM + "sys.exit(train"))
    argv = ("--sync", "fsdp", "--epochs", "1", "--report", "none", "--checkpoint-steps", "4", "--keep", "9")

    done = ranks(2, driver, "--out", str(tmp_path / "out"), *argv)

    assert done.codes == [0, 0], done.stderr
    said = [line for line in done.stderr.splitlines() if "no checkpoint was saved" in line]
    assert len(said) == 1, done.stderr
    assert said[0].startswith("no checkpoint was saved: rank 0: no room for it (")
    assert said[0].endswith("the run continues")
    complete = sorted(path.parent.name for path in (tmp_path / "out").glob("checkpoint-*/.metadata"))
    assert complete == ["checkpoint-00000008", "checkpoint-00000012"]


NO_ROOM = """
from torch.distributed.checkpoint import filesystem
def finish(*args, finish=filesystem.FileSystemWriter.finish, left=[True], **more):
    if left:
        left.pop()
        raise OSError("no room for it")
    return finish(*args, **more)
filesystem.FileSystemWriter.finish = finish
"""
