"""Checkpoints of a model sharded over the ranks, by torch.distributed.checkpoint."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch
import torch.distributed as dist
from torch import nn

from trainer.files import sync_to_disk
from trainer.saved import ABOUT, layout, remove, replace

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from torch.distributed.checkpoint.api import CheckpointException

    from trainer.world import World


def save(
    path: Path,
    parts: dict[str, Any],
    about: dict[str, Any],
    world: World,
    *,
    writer: ThreadPoolExecutor,
    written: Callable[[], None],
) -> Future[None]:
    """Start writing all ranks' shards; the future completes once they are the directory `path`."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_saver import async_save

    part = path.with_name(path.name + ".part")  # a checkpoint of this step stays until this one is complete
    failed = world.from_rank_0(_begin(part, about) if world.rank == 0 else None)
    if failed is not None:
        return writer.submit(_fail, failed)
    for buffer in parts["model"].buffers():  # running means differ by rank; tests are with rank 0's
        dist.broadcast(buffer, src=0)
    saving: Any = async_save(_state(parts), checkpoint_id=str(part), process_group=_group())

    def finish() -> None:
        try:
            saving.result()
        except CheckpointException as error:  # all ranks have ended their part
            if world.rank == 0:
                with suppress(OSError):
                    remove(part)  # a disk that is full would stay full
            raise _explained(error) from error
        if world.rank == 0:
            replace(path, part)
        written()

    return writer.submit(finish)


def _begin(part: Path, about: dict[str, Any]) -> Optional[str]:
    """Make the directory `part`, with all but the shards; return why that failed, for all ranks to know."""
    try:
        remove(part)
        part.mkdir(parents=True)
        torch.save(about, part / ABOUT)
        sync_to_disk(part / ABOUT)
    except (OSError, RuntimeError) as error:
        with suppress(OSError):  # the disk may be unavailable
            remove(part)
        return f"rank 0: {error}"
    return None


def _explained(error: CheckpointException) -> RuntimeError:
    """The first rank's reason: the error's own text begins with the ranks alone, and it is no `Exception`."""
    rank, (reason, _) = min(error.failures.items(), key=lambda item: item[0])
    return RuntimeError(f"rank {rank}: {reason}")


def _fail(reason: str) -> None:
    raise RuntimeError(reason)


def load(path: str, parts: dict[str, Any]) -> None:
    """Read each rank's shards into `parts`, on any number of ranks."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict import set_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load as load_shards

    names = layout(Path(path)).state_dict_metadata
    held = {name.partition(".")[0] for name in names if "." in name}  # an empty part has no name below its own
    state = _state({name: part for name, part in parts.items() if name in held})
    try:
        load_shards(state, checkpoint_id=path)
    except CheckpointException as error:  # on all ranks, if one of them cannot read what rank 0 can
        raise _explained(error) from error
    set_state_dict(
        parts["model"], parts["optimizer"], model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    for name, part in parts.items():
        if name in held - {"model", "optimizer"} or name == "average":
            part.load_state_dict(state.get(name, {}))


def shapes(path: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the model's weights in the checkpoint at `path`."""
    held = layout(Path(path)).state_dict_metadata
    weights = {name: one for name, one in held.items() if name.startswith("model.") and hasattr(one, "size")}
    return {name.partition(".")[2]: tuple(one.size) for name, one in weights.items()}


def _state(parts: dict[str, Any]) -> dict[str, Any]:
    """The state of all parts, with parameters by name, so that any number of ranks can read it."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model: nn.Module = parts["model"]
    weights, optimizer = get_state_dict(model, parts["optimizer"])
    others = {name: part.state_dict() for name, part in parts.items() if name not in ("model", "optimizer")}
    return {"model": weights, "optimizer": optimizer, **others}


_groups: list[Any] = []


def _group() -> Any:
    """A gloo group for the saving thread: its messages never mix with the training's."""
    if not _groups:
        _groups.append(dist.new_group(backend="gloo"))
    return _groups[0]
