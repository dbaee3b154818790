"""A run that was killed or stopped at any point resumes as if nothing had happened."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.train.held import FLAGS, held, losses, newest, origin, records, stopped

if TYPE_CHECKING:
    from pathlib import Path

    from tests.train.conftest import Alone, Start, Together

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def whole(ranks: Together, script: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run of 24 steps on two ranks."""
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
    ("at", "number", "resumes_from", "left"),
    [
        ("step, all written", 9, "5.pt: 0 epochs and 640 samples of the next done", 0),
        ("evaluation", 1, "10.pt: 0 epochs and 1,280 samples of the next done", 0),
        ("disk", 3, "10.pt: 0 epochs and 1,280 samples of the next done", 1),
        ("rename", 4, "12.pt: 1 epoch done", 1),
    ],
)
def test_after_a_kill_at_any_moment_the_losses_are_the_same_bits(
    at: str,
    number: int,
    resumes_from: str,
    left: int,
    whole: Path,
    start: Start,
    ranks: Together,
    script: Any,
    tmp_path: Path,
) -> None:
    """In a step, in an evaluation, while a checkpoint is on its way to the disk, and before it has its name."""
    argv = ("--out", str(tmp_path), *FLAGS)
    with start(2, script(at, number), *argv) as running:
        held(running)
        running.kill()
    assert len(list(tmp_path.glob("checkpoint-*.part"))) == left, "not killed where it should have been"

    done = ranks(2, script(), *argv)

    assert done.codes == [0, 0], done.stderr
    assert (
        origin(done)
        == f"resumed from {tmp_path}/checkpoint-{resumes_from.partition('.')[0]:0>8}.{resumes_from.partition('.')[2]}"
    )
    is_whole(tmp_path, whole)
    assert not list(tmp_path.glob("*.part"))


LATE = """
from trainer import checkpoint, optim, snapshot
free = threading.Event()

def late(self, state, changing=(), take=snapshot.Snapshot.take):
    free.clear()
    copy, copied = take(self, state, changing)
    return copy, lambda: (free.wait(), copied())

def waited(*args, wait=checkpoint.wait):
    free.set()
    return wait(*args)

def stepped(update, step=optim.Update.step):
    step(update)
    free.set()

snapshot.Snapshot.take, checkpoint.wait, optim.Update.step = late, waited, stepped
"""
"""The copy for a checkpoint is not made before something waits for it, or the next step has changed the weights."""


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


def test_checkpoints_by_steps_are_also_saved_at_the_ends_of_epochs(alone: Alone, tmp_path: Path) -> None:
    argv = ("--epochs", "3", "--report", "none", "--checkpoint-every", "9", "--checkpoint-steps", "6", "--keep", "9")

    run = alone("train.py", "--out", str(tmp_path), *argv)

    assert run.returncode == 0, run.stderr
    names = [f"checkpoint-{step:08d}.pt" for step in (6, 12, 18, 24, 30, 36)]
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == names


def test_with_another_number_of_ranks_the_rest_of_the_epoch_follows(
    ranks: Together, alone: Alone, tmp_path: Path
) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    argv = ("--epochs", "1", "--log-every", "1", "--report", "none", "--checkpoint-steps", "7")
    assert ranks(2, "train.py", "--out", str(two), *argv).codes == [0, 0]

    run = alone("train.py", "--out", str(one), "--resume", str(two / "checkpoint-00000007.pt"), *argv)

    assert run.returncode == 0, run.stderr
    assert "resumed from" in run.stdout
    assert records(one)[-1]["event"] == "finished"
    assert [row["samples"] for row in records(one) if row["event"] == "train"] == [
        8 * 128,
        9 * 128,
        10 * 128,
        11 * 128,
        1438,
    ]
    ours, theirs = losses(one), losses(two)
    assert all(ours[step] == pytest.approx(theirs[step], rel=1e-2) for step in ours)


@pytest.mark.parametrize(("at", "number", "step"), [("step", 11, 12), ("evaluation", 2, 24)])
def test_an_epoch_that_a_stop_kept_from_being_evaluated_is_evaluated_after_it(
    at: str, number: int, step: int, whole: Path, start: Start, ranks: Together, script: Any, tmp_path: Path
) -> None:
    """In the last step of the first epoch, and in the last evaluation; then once, though a kill follows."""

    def tested() -> int:
        return len([one for one in records(tmp_path) if one["event"] == "test"])

    argv = ("--out", str(tmp_path), *FLAGS)
    with start(2, script(at, number), *argv) as running:
        done = stopped(running)
    assert f"stopped at step {step} " in done.outs[0]
    assert ("test", step) not in losses(tmp_path)

    with start(2, script("disk", 1), *argv) as running:
        held(running)
        running.kill()
    assert ("test", step) in losses(tmp_path)

    for _ in range(2):
        done = ranks(2, script(), *argv)
        assert done.codes == [0, 0], done.stderr
        is_whole(tmp_path, whole)
        assert tested() == 2
    assert (tmp_path / "best.json").read_text() == (whole / "best.json").read_text()


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_the_optimizer_of_every_rank_goes_on_where_weights_are_laid_out_by_channels(
    ranks: Together, tmp_path: Path, kind: str
) -> None:
    """Those of convolutions over images of 3 channels are, by default."""
    argv = "--data synthetic --samples 256 --image-shape 3x16x16 --model small --batch-size 16 --epochs 1 --log-every 1"
    argv += f" --report none --checkpoint-steps 3 --keep 9 --optimizer {kind}"
    whole, again, otherwise = tmp_path / "whole", tmp_path / "again", tmp_path / "otherwise"
    assert ranks(2, "train.py", *argv.split(), "--out", str(whole)).codes == [0, 0]
    resume = ("--resume", str(whole / "checkpoint-00000003.pt"))

    done = ranks(2, "train.py", *argv.split(), "--out", str(again), *resume)

    assert done.codes == [0, 0], done.stderr
    expected = {place: loss for place, loss in losses(whole).items() if place[1] > 3}
    assert len(expected) == 5 + 1
    assert losses(again) == expected
    done = ranks(2, "train.py", *argv.split(), "--out", str(otherwise), *resume, "--channels-last", "off")
    assert done.codes == [0, 0], done.stderr
    assert losses(otherwise) == pytest.approx(expected, rel=1e-3)


def test_a_signal_on_one_rank_stops_all_which_resume_from_there(
    whole: Path, script: Any, start: Start, ranks: Together, tmp_path: Path
) -> None:
    """The signal comes in the middle of an epoch, and there is a deadline."""
    deadline = tmp_path / "deadline"
    deadline.write_text(str(time.time() + 600))
    env = {"DISTLAUNCH_DEADLINE_FILE": str(deadline)}
    out = tmp_path / "out"
    with start(2, script("step", 3), "--out", str(out), *FLAGS, env=env) as running:
        done = stopped(running, signal.SIGUSR1)

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
