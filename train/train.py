"""Train an image classifier, on any number of ranks.

    torchrun --nproc-per-node 2 train.py                       handwritten digits, above 98 % in seconds
    python train.py --data synthetic --model resnet18          one rank, without torchrun

`--help` lists the flags. SIGTERM or SIGUSR1 stops the run with status 143 and, given `--out`, a checkpoint, from which
the same command resumes.
"""

# DDP imports torch._dynamo in every process; distlaunch imports it once per node, before it forks the ranks:
# distlaunch: preload torch._dynamo

from __future__ import annotations

import os
import random
import sys
from typing import TYPE_CHECKING, Optional

import numpy as np
import torch
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from trainer import checkpoint, datasets, flags, loader, log, loop, model, network, optim, stop, sync
from trainer.errors import InputError, explained
from trainer.world import World, process_group

if TYPE_CHECKING:
    from pathlib import Path


class Trainer:
    """One rank's part in the training."""

    def __init__(self, world: World) -> None:
        self.world = world
        model.keep_freed_memory(world.device)
        self.config = world.together(lambda: flags.parse(sys.argv[1:], world.world_size))
        world.together(lambda: datasets.prepare(self.config, world.rank, world.world_size))
        self.data, self.net = world.together(self.prepare)
        self.same_data()
        self.network = network.Network(self.net, self.data, self.config, world.device)
        self.same_start()
        self.sync = sync.KINDS[self.config.sync](self.net, self.config, world)
        self.network.forward = torch.compile(self.sync.forward) if self.config.compile else self.sync.forward
        scales = self.network.dtype == torch.float16
        self.update = optim.Update(self.config, self.net, self.sync.trained, scales=scales, device=world.device)
        self.batches = loader.Batches(self.data, self.config, world)
        self.warm_up()
        seed_everything(self.config.seed + 1 + world.rank)  # after the weights are drawn: dropout must differ by rank
        self.checkpoints = checkpoint.Checkpoints(self.config, world, {"model": self.net, **self.update.parts()})
        self.progress = self.checkpoints.restore()
        self.progress.fit(self.batches.order.epoch_samples)
        self.sync.restored()
        self.log = log.RunLog(self.config, world, self.checkpoints)
        self.stop = stop.StopVote(world, self.sync.vote_every)

    def prepare(self) -> tuple[datasets.Data, torch.nn.Module]:
        """Load the data and build the model: all that a wrong flag, a bad file or a missing package can make fail."""
        if self.config.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = not self.config.deterministic
        sync.check(self.config, self.world)
        samples = datasets.load_data(self.config, self.world.world_size)
        net = model.build_model(self.config, samples.classes, self.world.device)
        return samples, net.to(memory_format=model.memory_format(self.config))

    def train_step(self, batch: loader.Batch) -> Tensor:
        """Run forward, backward and update; return the mean loss over this rank's samples."""
        self.net.zero_grad()
        fewest = (batch.end - batch.start) // self.world.world_size  # of all ranks, which make the same number of parts
        count = max(1, min(self.config.accumulate, fewest * self.config.accumulate // self.config.batch_size))
        parts = zip(batch.images.tensor_split(count), batch.labels.tensor_split(count))
        total = torch.zeros((), device=self.world.device)
        for number, part in enumerate(parts, 1):
            share = len(part[1]) / len(batch.labels)  # 0 if too many samples are damaged: only in the collectives
            images, labels = part if share else (batch.images[:1], batch.labels[:1])
            if len(labels) == 1 < self.config.batch_size // self.config.accumulate:  # others of it are damaged
                images, labels = images.repeat(2, 1, 1, 1), labels.repeat(2)  # the same mean, also for BatchNorm
            with self.sync.part(last=number == count):
                with self.log.own_time:
                    logits = self.network.logits(images)
                    loss = cross_entropy(logits, labels, label_smoothing=self.config.label_smoothing) * share
                self.update.backward(loss * batch.weight)
            total += loss.detach()
        self.sync.average()
        self.update.clip()
        self.checkpoints.copied()
        self.sync.update()
        if self.update.average:
            self.update.average.update()
        return total

    def train(self) -> int:
        """Train to the end or until a signal; return the exit status."""
        done, epoch_samples, score = self.progress, self.batches.order.epoch_samples, None
        self.log.start(self.data, self.net, done, self.network.dtype)
        self.sync.start(self.update.step)
        try:
            if self.unscored():
                score = self.score(self.log.empty_row(done), due=True)
            while done.epoch < self.config.epochs:
                self.log.begin_row()
                for batch in self.batches.train(done.epoch, done.epoch_samples):
                    lr = optim.set_learning_rate(
                        self.update.optimizer, self.config, done, epoch_samples, self.world.world_size
                    )
                    self.log.add(batch, self.train_step(batch), done, epoch_samples)
                    done.advance(batch.start, batch.end, epoch_samples)
                    stopping = self.stop.agreed()
                    saving = bool(done.epoch_samples and self.steps_due())  # else once the epoch is evaluated
                    if stopping or saving or (self.log.steps == self.config.log_every and done.epoch_samples):
                        self.log.row(done, lr)
                        self.checkpoints.poll()
                    if stopping:
                        return self.stopped()
                    if saving:
                        self.save()
                row = self.log.end_row(done, lr)
                score = self.score(row, due=self.steps_due() or not done.epoch % self.config.checkpoint_every)
            score = score or self.evaluate()
        except loop.Interrupted as interrupted:
            return self.stopped(interrupted.accuracy)
        if not self.written():
            return self.left(None)
        self.close()
        self.log.finished(score, done, self.network.ceiling() if self.world.rank == 0 else None)
        return 0

    def steps_due(self) -> bool:
        """Whether `--checkpoint-steps` asks for a checkpoint of this step."""
        return bool(self.config.checkpoint_steps and not self.progress.step % self.config.checkpoint_steps)

    def unscored(self) -> bool:
        """Whether this run resumes from the end of an epoch that a stop kept from being evaluated."""
        resumed, done = self.checkpoints.resumed, self.progress
        return bool(resumed and not resumed.scored and done.epoch and not done.epoch_samples)

    def score(self, row: str, *, due: bool) -> loop.Score:
        """At the end of an epoch, evaluate, complete its last row, and save if that is `due`, or the epoch the last."""
        score, done = self.evaluate(), self.progress
        self.log.epoch(row, done, score, self.damaged())
        if due or done.epoch == self.config.epochs:
            self.save(score.accuracy)
        return score

    def evaluate(self) -> loop.Score:
        """Score the model on the test set, with the averaged weights if the run keeps them."""
        self.sync.settle()
        with self.update.averaged():
            return loop.evaluate(self.network.own_logits, self.net, self.batches, self.world, self.stop.agreed)

    def save(self, accuracy: Optional[float] = None) -> None:
        """Start writing a checkpoint; raises `Interrupted` if a signal comes while it waits for the one before it."""
        self.sync.settle()
        saved = self.checkpoints.save(self.progress, accuracy, unless=self.stop.vote)
        if self.stop.signal_name:
            raise loop.Interrupted(accuracy)  # no further step: an epoch's end is saved there, with its accuracy
        self.log.saved(saved)

    def written(self) -> bool:
        """Wait for the last checkpoint; False if a signal comes, and it is not complete by the deadline."""
        written = self.checkpoints.written(unless=self.stop.vote)
        return written or self.checkpoints.written(deadline=self.stop.deadline)

    def stopped(self, accuracy: Optional[float] = None) -> int:
        """After a signal, save and finish before the deadline; return the exit status."""
        self.sync.settle()
        path = self.checkpoints.holds(self.progress)
        path = path or self.checkpoints.save(self.progress, accuracy, deadline=self.stop.deadline)
        newest = self.checkpoints.finish(self.stop.deadline)
        return self.left(path if path == newest else None)

    def left(self, path: Optional[Path]) -> int:
        """Report the checkpoint that a signal leaves, and leave; return the exit status."""
        self.log.stopped(self.progress, path, self.stop)
        # Rank 0 has finished: a launcher ends the others once one rank has exited.
        if self.world.sum(self.checkpoints.late)[0]:
            os._exit(stop.STATUS)  # the disk does not respond, and the interpreter's exit would wait for it
        self.close()
        return stop.STATUS

    def damaged(self) -> int:
        """The number of training and test samples skipped so far, over all ranks."""
        mine: set[tuple[str, int]] = set()
        for name in ("train", "test"):
            source = getattr(self.data, name)
            mine |= {(name, number) for number in getattr(getattr(source, "source", source), "damaged", ())}
        return len(set().union(*self.world.all(mine)))  # two ranks may have met the same

    def same_data(self) -> None:
        """Check that all ranks have as many samples, since each of them finds its share of all by itself."""
        data = self.data
        mine = f"{len(data.train):,} training and {len(data.test):,} test samples of {data.classes} classes"
        first = self.world.from_rank_0((mine, data.problems[:1]))
        self.world.together(lambda: self.check_data((mine, data.problems[:1]), first))

    def check_data(self, mine: tuple[str, list[str]], first: tuple[str, list[str]]) -> None:
        """Raise `InputError` if this rank has other numbers of samples than rank 0, with a problem of each."""
        if mine[0] != first[0]:
            text = f"--data {self.config.data}: {mine[0]}, but {first[0]} on rank 0; all hosts need the same files"
            raise InputError("; ".join((text, *mine[1], *(f"rank 0: {problem}" for problem in first[1]))))

    def same_start(self) -> None:
        """Make all ranks start with the same weights, and check that they do."""
        if self.config.init == "broadcast":
            for tensor in self.net.state_dict().values():
                torch.distributed.broadcast(tensor, src=0)
        first = self.world.from_rank_0(model.fingerprint(self.net))
        self.world.together(lambda: self.check_start(first))

    def check_start(self, first: int) -> None:
        """Raise `InputError` if this rank's weights are not rank 0's, whose hash is `first`."""
        if model.fingerprint(self.net) != first:
            raise InputError(
                f"the weights at the start are not rank 0's (--init {self.config.init}); --init broadcast sends them"
            )

    def warm_up(self) -> None:
        """Run one step that changes nothing.

        DDP rebuilds its buckets after the first step, and sums depend on their layout: with this step, a resumed run
        computes the same sums as an uninterrupted one.
        """
        if self.config.sync != "ddp" or self.world.world_size == 1:
            return
        kept = [buffer.clone() for buffer in self.net.buffers()]
        images = torch.zeros(2, *self.config.image_shape, dtype=self.data.train.dtype, device=self.world.device)
        self.network.logits(images).sum().mul(0).backward()  # type: ignore[no-untyped-call]
        self.net.zero_grad()
        for buffer, before in zip(self.net.buffers(), kept):
            buffer.copy_(before)

    def close(self) -> None:
        """Stop the threads, and release everything that holds the process group."""
        self.stop.close()
        self.sync.close()
        self.batches.close()
        self.checkpoints.finish()


def seed_everything(seed: int) -> None:
    """Seed the generators of torch (on all devices), Python and numpy."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # third-party augmentations draw from it


@record
def main() -> int:
    """Train; return the exit status."""
    try:
        with process_group() as world:
            return Trainer(world).train()
    except RuntimeError as error:
        reason = explained(error)
        raise reason from (error if reason is not error else None)


if __name__ == "__main__":
    sys.exit(main())
