"""How the ranks train one model together (`--sync`).

All methods but the asynchronous one make the same step from the same samples: the mean over all samples of the step.
They differ in which ranks send what to which. `ddp` and `fsdp` are torch's own and the ones to use; the others show
what those do, and what came before them.
"""

from __future__ import annotations

import copy
import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.errors import InputError
from trainer.gradients import flat, gradients_of, trainable, unflatten
from trainer.replicas import Replicas

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.world import World


class Sync:
    """The interface. A step is `forward` and backward, `average`, clipping, `update`. The base suits a single rank."""

    vote_every = 1
    """Steps between two votes on stopping; above 1 if ranks are not to wait for one another."""

    def __init__(self, net: nn.Module, config: Config, world: World) -> None:
        self.net, self.config, self.world = net, config, world
        self.forward: nn.Module = net
        """The module that takes the images."""
        self.trained: nn.Module = net
        """The module that the optimizer updates."""
        self.step: Callable[[], None] = lambda: None

    def restored(self) -> None:
        """Called after `net` has been read from a checkpoint."""

    def start(self, step: Callable[[], None]) -> None:
        """Start training; `step` applies the gradients of `trained` to it."""
        self.step = step

    def part(self, *, last: bool) -> ContextManager[None]:  # noqa: ARG002
        """A context for forward and backward of each part of a batch: only in the `last` do the ranks need to meet."""
        return nullcontext()

    def average(self) -> None:
        """Make every gradient the mean over the ranks, unless backward has done it."""

    def update(self) -> None:
        """Make the step on the ranks that hold the optimizer, and give all ranks its result."""
        self.step()

    def settle(self) -> None:
        """Make all ranks hold the same weights, if they may differ."""

    def close(self) -> None:
        """Finish training, and drop `step`: it refers to the owner of this object."""
        self.step = lambda: None


class DDP(Sync):
    """torch's DistributedDataParallel: gradients are all-reduced in buckets while backward computes the others."""

    def __init__(self, net: nn.Module, config: Config, world: World) -> None:
        super().__init__(net, config, world)
        self.ddp = DistributedDataParallel(
            net,
            device_ids=[world.device] if world.device.type == "cuda" else None,
            gradient_as_bucket_view=True,  # no second copy of the gradients
            static_graph=config.accumulate == 1,
        )
        self.forward = self.ddp
        if config.comm_hook != "none":
            self.ddp.register_comm_hook(*_comm_hook(config.comm_hook))

    @contextmanager
    def part(self, *, last: bool) -> Iterator[None]:
        """See `Sync`."""
        if last:
            yield
        else:
            with self.ddp.no_sync():
                yield


def _comm_hook(name: str) -> tuple[Any, Any]:
    """State and function of a DDP communication hook, which compresses gradients for sending."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if name == "powersgd":  # Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression"
        return powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=2, start_powerSGD_iter=10
        ), powerSGD_hook.powerSGD_hook
    return None, {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}[name]


class FSDP(Sync):
    """torch's fully_shard (FSDP2): each rank holds a part of every weight, gradient and optimizer state.

    Weights are gathered layer by layer for forward and backward; gradients are reduced to the rank that holds the part.
    """

    def __init__(self, net: nn.Module, config: Config, world: World) -> None:
        super().__init__(net, config, world)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(world.device.type, (world.world_size,))
        for child in net.children():
            if sum(parameter.numel() for parameter in child.parameters()) > 0:
                fully_shard(child, mesh=mesh)
        fully_shard(net, mesh=mesh)

    @contextmanager
    def part(self, *, last: bool) -> Iterator[None]:
        """See `Sync`."""
        net: Any = self.net
        net.set_requires_gradient_sync(last)
        yield


class AverageGradients(Sync):
    """All-reduce by hand: after backward, every gradient is summed over the ranks and divided by their number."""

    def average(self) -> None:
        """See `Sync`."""
        gradients = gradients_of(self.net)
        sums = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
        for gradient, pending in zip(gradients, sums):
            pending.wait()
            gradient.div_(self.world.world_size)


class ReduceBroadcast(Sync):
    """The all-reduce in its two halves: the sum goes to rank 0, which divides it and sends it to all ranks."""

    def average(self) -> None:
        """See `Sync`."""
        for gradient in gradients_of(self.net):
            dist.reduce(gradient, dst=0)
            if self.world.rank == 0:
                gradient.div_(self.world.world_size)
            dist.broadcast(gradient, src=0)


class ParameterServer(Sync):
    """Rank 0 keeps the optimizer: the others push their gradients to it and pull the new weights from it.

    Rank 0 also trains. Source: Li et al., "Scaling Distributed Machine Learning with the Parameter Server".
    """

    def average(self) -> None:
        """Push: rank 0 receives the gradients of the others and sums them."""
        mine = flat(gradients_of(self.net))
        if self.world.rank != 0:
            dist.send(mine, dst=0)
            return
        theirs = torch.empty_like(mine)
        for rank in range(1, self.world.world_size):
            dist.recv(theirs, src=rank)
            mine += theirs
        unflatten(mine / self.world.world_size, gradients_of(self.net))

    def update(self) -> None:
        """Pull: only rank 0 makes the step; the others receive its weights."""
        if self.world.rank == 0:
            self.step()
        weights = flat(list(self.net.parameters()))
        dist.broadcast(weights, src=0)
        if self.world.rank != 0:
            unflatten(weights, list(self.net.parameters()))


class AsyncParameterServer(Sync):
    """A parameter server without waiting: a thread of rank 0 makes a step from each push as it arrives.

    A gradient may belong to weights that other ranks have changed since. Ranks meet only every 16 steps, to vote on
    stopping, which also bounds how far apart they drift. Source: Dean et al., "Large Scale Distributed Deep Networks".
    """

    vote_every = 16

    def __init__(self, net: nn.Module, config: Config, world: World) -> None:
        super().__init__(net, config, world)
        self.group: Any = dist.new_group(backend="gloo")
        self.turn = threading.Lock()
        if world.rank == 0:
            self.trained = copy.deepcopy(net)  # the weights in use must not change during backward

    def restored(self) -> None:
        """See `Sync`."""
        self.trained.load_state_dict(self.net.state_dict())

    def start(self, step: Callable[[], None]) -> None:
        """See `Sync`; starts the server."""
        super().start(step)
        if self.world.rank == 0:
            self.server = threading.Thread(target=self._serve, name="parameter-server", daemon=True)
            self.server.start()

    def update(self) -> None:
        """Push the gradients and pull the weights that result."""
        gradients = flat(gradients_of(self.net)).cpu()
        if self.world.rank == 0:
            weights = self._apply(gradients)
        else:
            dist.send(torch.cat([gradients, torch.ones(1)]), dst=0, group=self.group)
            weights = torch.empty_like(gradients)
            dist.recv(weights, src=0, group=self.group)
        unflatten(weights, trainable(self.net))

    def settle(self) -> None:
        """Wait until no push is in flight, and give all ranks the server's weights."""
        dist.barrier()
        weights = flat(list(self.trained.parameters())).cpu()
        dist.broadcast(weights, src=0)
        unflatten(weights, list(self.net.parameters()))

    def close(self) -> None:
        """Signal the server that this rank pushes no more; the server exits after the last rank."""
        self.settle()
        if self.world.rank == 0:
            self.server.join()
        else:
            dist.send(torch.zeros(sum(p.numel() for p in trainable(self.net)) + 1), dst=0, group=self.group)
        super().close()

    def _serve(self) -> None:
        """On a thread of rank 0, make a step from every push of any rank."""
        size = sum(parameter.numel() for parameter in trainable(self.net))
        push, training = torch.empty(size + 1), self.world.world_size - 1
        while training:
            sender = dist.recv(push, group=self.group)
            if push[-1] == 0:
                training -= 1
            else:
                dist.send(self._apply(push[:-1]), dst=sender, group=self.group)

    def _apply(self, gradients: Tensor) -> Tensor:
        """Make a step from the `gradients` of all that is trained, one at a time; return its new weights."""
        with self.turn:
            unflatten(gradients, gradients_of(self.trained))
            self.step()
            return flat(trainable(self.trained)).cpu()


class DataParallel(Sync):
    """One process, many devices: each batch is split, and a thread per device runs a share through a copy of the model.

    The copies are made from the model in each step, so that autograd sums their gradients in it.
    """

    def __init__(self, net: nn.Module, config: Config, world: World) -> None:
        super().__init__(net, config, world)
        gpus = torch.cuda.device_count() if world.device.type == "cuda" else 0
        count = config.replicas or gpus or 2
        devices = [torch.device("cuda", number) for number in range(gpus)] if gpus else [world.device] * count
        self.forward = Replicas(net, devices[:count])


KINDS: dict[str, type[Sync]] = {
    "ddp": DDP,
    "fsdp": FSDP,
    "average-gradients": AverageGradients,
    "reduce-broadcast": ReduceBroadcast,
    "parameter-server": ParameterServer,
    "async-parameter-server": AsyncParameterServer,
    "data-parallel": DataParallel,
}


def check(config: Config, world: World) -> None:
    """Raise `InputError` if these ranks cannot train this way."""
    if config.sync == "data-parallel" and world.world_size > 1:
        raise InputError(
            f"--sync data-parallel is one process with many devices; started were {world.world_size} ranks"
        )
    if config.sync == "fsdp" and not _shards_on(world.device):
        raise InputError(f"--sync fsdp on {world.device.type} needs a newer torch; this is {torch.__version__}")
    if config.sync == "fsdp" and config.channels_last == "on":
        raise InputError("--sync fsdp cannot shard weights that lie channels-last: leave --channels-last away")


def _shards_on(device: torch.device) -> bool:
    """fully_shard is public since torch 2.6; on a CPU, it also needs events there."""
    since = torch.__version__ >= (2, 6)  # type: ignore[operator]  # TorchVersion compares with tuples
    return since and (device.type != "cpu" or hasattr(torch.cpu.Stream, "record_event"))
