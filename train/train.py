"""Train an image classifier, on any number of ranks.

    torchrun --nproc-per-node 2 train.py                       handwritten digits, above 98 % in seconds
    python train.py --data synthetic --model resnet18          one rank, without torchrun

`--help` lists the flags. SIGTERM or SIGUSR1 ends the run with status 143 and, given `--out`, a checkpoint: the same command
goes on from there.
"""

# DDP imports this in every process; under distlaunch it is imported once per node, before the ranks are forked:
# distlaunch: preload torch._dynamo

from __future__ import annotations

import os
import random
import sys
from typing import Optional

import numpy as np
import torch
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from trainer import checkpoint, datasets, flags, loader, log, loop, model, optim, roofline, stop, sync
from trainer.errors import InputError, explained
from trainer.world import World, process_group


class Trainer:
    """One rank's part in the training."""

    def __init__(self, world: World) -> None:
        self.world = world
        model.keep_freed_memory(world.device)
        self.config = world.together(lambda: flags.parse(sys.argv[1:], world.world_size))
        world.together(lambda: datasets.prepare(self.config, world.rank, world.world_size))
        self.data, self.net = world.together(self.prepare)
        self.dtype = model.compute_type(self.config, world.device)
        self.outline = roofline.outline(self.net, world.device)  # before it is sharded
        self.normalise = loader.Normalise(
            self.data,
            world.device,
            torch.float32 if self.dtype == torch.float16 else self.dtype,
            model.memory_format(self.config),
        )
        self.same_start()
        self.sync = sync.KINDS[self.config.sync](self.net, self.config, world)
        self.forward = torch.compile(self.sync.forward) if self.config.compile else self.sync.forward
        self.optimizer = optim.make_optimizer(self.config, self.sync.trained)
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=self.dtype == torch.float16)
        self.average = optim.Average(self.net, self.config.ema_decay) if self.config.ema_decay else None
        self.batches = loader.Batches(self.data, self.config, world)
        self.own_time = loop.OwnTime(world.device)
        self.warm_up()
        seed_everything(self.config.seed + 1 + world.rank)  # the weights are drawn; dropout shall differ by rank
        parts = {"model": self.net, "optimizer": self.optimizer, "scaler": self.scaler, "average": self.average}
        self.checkpoints = checkpoint.Checkpoints(self.config, world, {name: part for name, part in parts.items() if part})
        self.progress = self.checkpoints.restore()
        self.sync.restored()
        self.log = log.RunLog(self.config, world, self.checkpoints, self.own_time)
        self.stop = stop.StopVote(world, self.sync.vote_every)

    def prepare(self) -> tuple[datasets.Data, torch.nn.Module]:
        """Everything that a wrong flag, a file or a missing package can spoil."""
        if self.config.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = not self.config.deterministic
        sync.check(self.config, self.world)
        samples = datasets.load_data(self.config, self.world.world_size)
        net = model.build_model(self.config, samples.classes, self.world.device)
        return samples, net.to(memory_format=model.memory_format(self.config))

    def train_step(self, batch: loader.Batch) -> Tensor:
        """Forward, backward, update; the mean loss over this rank's samples."""
        self.net.zero_grad()
        parts = list(zip(batch.images.chunk(self.config.accumulate), batch.labels.chunk(self.config.accumulate)))
        total = torch.zeros((), device=self.world.device)
        for number, (images, labels) in enumerate(parts, 1):
            share = len(labels) / len(batch.labels)
            with self.sync.part(last=number == len(parts)):
                self.own_time.begin()
                loss = cross_entropy(self.logits(images), labels, label_smoothing=self.config.label_smoothing) * share
                self.own_time.end()
                self.scaler.scale(loss * batch.weight).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        self.sync.average()
        if self.config.clip_norm:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.config.clip_norm)
        self.checkpoints.copied()
        self.sync.update()
        if self.average:
            self.average.update()
        return total

    def logits(self, images: Tensor, forward: Optional[torch.nn.Module] = None) -> Tensor:
        """float32 (n, classes) of images (n, channels, height, width) as the loader gives them."""
        with torch.autocast(self.world.device.type, self.dtype, enabled=self.dtype != torch.float32):
            result: Tensor = (forward or self.forward)(self.normalise(images))
        return result.float()

    def optimizer_step(self) -> None:
        """Change the weights by the gradients; with fp16 not if they overflowed."""
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def train(self) -> int:
        """Run to the end, or to a signal; the exit status."""
        done, epoch_samples, score = self.progress, self.batches.order.epoch_samples, None
        self.log.start(self.data, self.net, done, self.dtype)
        self.sync.start(self.optimizer_step)
        try:
            while done.epoch < self.config.epochs:
                self.log.begin_row()
                for batch in self.batches.train(done.epoch, done.epoch_samples):
                    lr = optim.set_learning_rate(self.optimizer, self.config, done, epoch_samples, self.world.world_size)
                    self.log.add(batch, self.train_step(batch), done, epoch_samples)
                    done.advance(batch.start, batch.end, epoch_samples)
                    stopping = self.stop.agreed()
                    saving = bool(
                        done.epoch_samples and self.config.checkpoint_steps and not done.step % self.config.checkpoint_steps
                    )
                    if stopping or saving or (self.log.steps == self.config.log_every and done.epoch_samples):
                        self.log.row(done, lr)
                        self.checkpoints.poll()
                    if stopping:
                        return self.stopped()
                    if saving:
                        self.save()
                row = self.log.end_row(done, lr)
                score = self.evaluate()
                self.log.epoch(row, done, score, self.damaged())
                if done.epoch % self.config.checkpoint_every == 0 or done.epoch == self.config.epochs:
                    self.save(score.accuracy)
            score = score or self.evaluate()
        except loop.Interrupted:
            return self.stopped()
        self.close()
        ceiling = None
        if self.outline is not None and self.world.rank == 0:
            name = torch.cuda.get_device_name(self.world.device)
            ceiling = roofline.ceiling(self.outline, self.config.image_shape, self.dtype, name)
        self.log.finished(score, done, ceiling)
        return 0

    def evaluate(self) -> loop.Score:
        """The model's score on the test set, with the averaged weights if there are such."""
        self.sync.settle()

        def forward(images: Tensor) -> Tensor:
            return self.logits(images, self.net)

        if self.average is None:
            return loop.evaluate(forward, self.net, self.batches, self.world, self.stop.agreed)
        with self.average.in_place():
            return loop.evaluate(forward, self.net, self.batches, self.world, self.stop.agreed)

    def save(self, accuracy: Optional[float] = None) -> None:
        """Begin a checkpoint."""
        self.sync.settle()
        self.log.saved(self.checkpoints.save(self.progress, accuracy))

    def stopped(self) -> int:
        """A signal: save, and end before the deadline; the exit status."""
        self.sync.settle()
        path = self.checkpoints.save(self.progress, deadline=self.stop.deadline)
        newest = self.checkpoints.finish(self.stop.deadline)
        self.log.stopped(self.progress, path if path == newest else None, self.stop)
        if self.checkpoints.late:
            os._exit(stop.STATUS)  # the disk does not answer, and the end of the interpreter would wait for it
        self.close()
        return stop.STATUS

    def damaged(self) -> int:
        """Samples that were skipped so far, over all ranks."""
        source = getattr(self.data.train, "source", self.data.train)
        return round(self.world.sum(len(getattr(source, "damaged", ())))[0])

    def same_start(self) -> None:
        """Make all ranks start with the same weights, and check that they do."""
        if self.config.init == "broadcast":
            for tensor in self.net.state_dict().values():
                torch.distributed.broadcast(tensor, src=0)
        first = self.world.from_rank_0(model.fingerprint(self.net))
        self.world.together(lambda: self.check_start(first))

    def check_start(self, first: int) -> None:
        """Raise `InputError` where this rank's weights are not rank 0's, whose hash is `first`."""
        if model.fingerprint(self.net) != first:
            raise InputError(
                f"the weights at the start are not rank 0's (--init {self.config.init}); --init broadcast sends them"
            )

    def warm_up(self) -> None:
        """One step that changes nothing.

        DDP lays out its buckets anew after the first one, and sums depend on the layout: with this, those of a resumed run are
        those of a run that was never stopped.
        """
        if self.config.sync != "ddp" or self.world.world_size == 1:
            return
        kept = [buffer.clone() for buffer in self.net.buffers()]
        images = torch.zeros(2, *self.config.image_shape, dtype=self.data.train.dtype, device=self.world.device)
        self.logits(images).sum().mul(0).backward()  # type: ignore[no-untyped-call]
        self.net.zero_grad()
        for buffer, before in zip(self.net.buffers(), kept):
            buffer.copy_(before)

    def close(self) -> None:
        """End threads, and let go of everything that holds the process group."""
        self.stop.close()
        self.sync.close()
        self.batches.close()
        self.checkpoints.finish()


def seed_everything(seed: int) -> None:
    """Of torch, on all devices, of Python and of numpy."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # what augmentations of others draw from


@record
def main() -> int:
    """Train; the exit status."""
    try:
        with process_group() as world:
            return Trainer(world).train()
    except RuntimeError as error:
        reason = explained(error)
        raise reason from (error if reason is not error else None)


if __name__ == "__main__":
    sys.exit(main())
