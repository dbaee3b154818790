"""train.py that stops itself at a chosen place, and what its runs leave."""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING, Any

from testbed.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.train.ranks import Done, Ranks

FLAGS = (
    "--epochs",
    "2",
    "--log-every",
    "1",
    "--report",
    "none",
    "--checkpoint-steps",
    "5",
    "--keep",
    "9",
    "--ema-decay",
    "0.9",
)

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
"""train.py with steps that depend on all random numbers; rank 0 stops itself in a place, at the `number`th time."""


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
    """The line that says where a run resumed from."""
    return next(line for line in done.outs[0].splitlines() if line.startswith(("resumed from", "no checkpoint")))


def held(running: Ranks) -> None:
    """Wait until rank 0 has stopped itself."""
    running.line(0, "held")
    wait_until("rank 0 to stop", lambda: "\tT (" in running.status(0), limit_s=60)


def took(running: Ranks, rank: int) -> None:
    """Wait until no signal to a rank is pending."""
    pending = re.compile(r"^(SigPnd|ShdPnd):\s+0*[1-9a-f]", re.MULTILINE)
    wait_until(f"rank {rank} to take the signal", lambda: not pending.search(running.status(rank)), limit_s=60)


def stopped(running: Ranks, number: int = signal.SIGTERM) -> Done:
    """Signal rank 1 while rank 0 is held, and have rank 0 continue; both stop the run as they should."""
    held(running)
    running.signal(1, number)
    took(running, 1)
    running.signal(0, signal.SIGCONT)
    done = running.done()
    assert done.codes == [143, 143], done.stderr
    return done
