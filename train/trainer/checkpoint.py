"""Atomic checkpoints, written during training: a step waits for a copy in memory, not for a disk.

Rank 0 copies weights and optimizer state to buffers that it keeps, and a thread writes them. On resume, all ranks get
what rank 0 reads. With --sync fsdp, every rank writes and reads its shard (torch.distributed.checkpoint; the
directory's `.metadata` comes last, and then its name).
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

from trainer import resume, sharded
from trainer.files import whole
from trainer.saved import Saved, newest_first, remove, step_of, this_run, write_whole
from trainer.snapshot import Snapshot, broadcast_state, random_state, set_random_state

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.world import World

MARGIN_S = 1.0
"""Time reserved before a deadline for the rest of the shutdown."""


SLICE_S = 0.1
"""How long the ranks wait for a write, at a time, before they look for a signal together."""


@dataclass
class Progress:
    """The training's progress; counts are over all ranks."""

    epoch: int = 0
    """Epochs finished."""

    epoch_samples: int = 0
    """Samples seen of the current epoch."""

    step: int = 0
    samples: int = 0

    def fit(self, epoch_size: int) -> None:
        """Begin the next epoch, if samples were removed since and this one, of `epoch_size`, has none left."""
        if self.epoch_samples >= epoch_size:
            self.epoch, self.epoch_samples = self.epoch + 1, 0

    def advance(self, start: int, end: int, epoch_size: int) -> None:
        """Count a step that took the samples from `start` to `end` of an epoch of `epoch_size`."""
        self.step += 1
        self.samples += end - start
        self.epoch, self.epoch_samples = (self.epoch + 1, 0) if end == epoch_size else (self.epoch, end)


class Checkpoints:
    """The checkpoints of one run, in `--out`. Every rank holds one and calls the same methods."""

    def __init__(self, config: Config, world: World, parts: dict[str, Any]) -> None:
        """`parts` are what is saved, each with `state_dict` and `load_state_dict`: model, optimizer, ..."""
        self.config, self.world, self.parts = config, world, parts
        self.sharded = config.sync == "fsdp"
        self.resumed: Optional[Saved] = None
        """The checkpoint that `restore` loaded."""
        self.stall_s = 0.0
        """How long the last `save`, and `copied` after it, kept the training waiting."""
        self.newest: Optional[Path] = None
        """The newest complete checkpoint, known to rank 0."""
        self._snapshot, self._writer = Snapshot(), ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._copying: Optional[Future[None]] = None
        self._writing: Optional[Future[None]] = None
        self._best = -1.0

    def restore(self) -> Progress:
        """Prepare `--out` and load the checkpoint that `--resume` selects, if there is one.

        Rank 0 reads weights, optimizer state and random state for all ranks; each rank reads its shards. Exits the run
        if `--out` or the file is unusable.
        """
        world = self.world
        found = world.together(lambda: self._find() if world.rank == 0 else None)
        about = world.from_rank_0(found and replace(found, tensors={}))
        if about is None:
            return Progress()
        self.resumed, self.newest = about, Path(about.path)
        if about.sharded:
            sharded.load(about.path, self.parts)
        else:
            state = broadcast_state(found.tensors if found else None, world)
            for name, part in self.parts.items():
                if state.get(name) or name == "average":  # the scaler's is empty, unless the run had fp16
                    part.load_state_dict(state.get(name, {}))
        if len(about.random) == world.world_size:  # else the ranks do not correspond: each keeps its seed
            set_random_state(about.random[world.rank], world)
        return Progress(**about.progress)

    def save(
        self,
        progress: Progress,
        accuracy: Optional[float] = None,
        *,
        deadline: Optional[float] = None,
        unless: Callable[[], bool] = lambda: False,
    ) -> Optional[Path]:
        """Start writing --out/checkpoint-STEP; return its path, or None without `--out`.

        The training may continue until `copied`. The previous checkpoint must be complete first, since its buffers are
        reused; None if it is not, see `written`.
        """
        if self.config.out is None:
            return None
        begin_s = time.perf_counter()
        if not self.written(deadline=deadline, unless=unless):
            return None
        random = self.world.to_rank_0(random_state(self.world))  # which writes them
        config, scored = self.config.to_json(), accuracy is not None
        about = {"progress": asdict(progress), "random": random, "config": config, "run": this_run(), "scored": scored}
        path = self.config.out / f"checkpoint-{progress.step:08d}{'' if self.sharded else '.pt'}"
        state = (
            {name: part.state_dict() for name, part in self.parts.items()}
            if self.sharded or self.world.rank == 0
            else {}
        )
        if self.sharded:
            self._writing = sharded.save(
                path, self.parts, about, self.world, writer=self._writer, written=lambda: self._written(path, accuracy)
            )
        elif self.world.rank == 0:
            copy, copied = self._snapshot.take(state, self.parts["model"].buffers())
            copying = self._writer.submit(copied)
            self._copying = copying if self.world.device.type == "cpu" else None  # a GPU's stream keeps the order
            self._writing = self._writer.submit(self._write, path, {**copy, **about}, copying, accuracy)
        self.stall_s = time.perf_counter() - begin_s
        if self.config.sync == "async-parameter-server":  # its weights change at any time
            self.copied()
        return path

    def written(self, *, deadline: Optional[float] = None, unless: Callable[[], bool] = lambda: False) -> bool:
        """Wait until no rank writes; False if one still does at `deadline`, or once `unless` is true.

        All ranks call `unless` equally often, and it must be the same on all: a disk that does not respond must not
        keep them from agreeing to stop.
        """
        if deadline is not None:
            self.finish(deadline)
            return not self.world.sum(self.late)[0]
        self.poll()
        while self.world.sum(self.late)[0]:
            if unless():
                return False
            self.poll(SLICE_S)
        return True

    def holds(self, progress: Progress) -> Optional[Path]:
        """The checkpoint in `--out` that this run resumed from, if nothing was trained since."""
        resumed = self.resumed
        if resumed is None or Path(resumed.path).parent != self.config.out:
            return None
        return Path(resumed.path) if Progress(**resumed.progress) == progress else None

    def copied(self) -> bool:
        """Wait until weights and optimizer state are copied and may change; return whether a copy was pending."""
        if self._copying is None:
            return False
        begin_s, copying, self._copying = time.perf_counter(), self._copying, None
        wait([copying])
        self.stall_s += time.perf_counter() - begin_s
        return True

    def poll(self, wait_s: Optional[float] = 0.0) -> None:
        """Check whether the current write is complete, waiting up to `wait_s`; rank 0 prints a failure once."""
        if self._writing is None or not wait([self._writing], wait_s).done:
            return
        error, self._writing = self._writing.exception(), None
        if error is not None and self.world.rank == 0:
            text = (str(error).splitlines() or [type(error).__name__])[0]
            room = _room(self.config.out) if self.config.out else ""
            sys.stderr.write(f"no checkpoint was saved: {text}{room}; the run continues\n")

    def finish(self, deadline: Optional[float] = None) -> Optional[Path]:
        """Wait for the current write, at most until `deadline` (unix seconds); return the newest path, on rank 0."""
        self.poll(None if deadline is None else max(0.0, deadline - MARGIN_S - time.time()))
        if self._writing is not None and self.world.rank == 0:
            sys.stderr.write(f"the last checkpoint was not complete at the deadline; the newest is {self.newest}\n")
        return self.newest

    @property
    def late(self) -> bool:
        """Whether `finish` gave up waiting: then the process cannot exit normally before the disk responds."""
        return self._writing is not None

    def _write(self, path: Path, state: dict[str, Any], copying: Future[None], accuracy: Optional[float]) -> None:
        """Write on the writer's thread, after the copy."""
        copying.result()
        write_whole(state, path)
        self._written(path, accuracy)

    def _written(self, path: Path, accuracy: Optional[float]) -> None:
        """After a checkpoint is complete, record whether it is the best; keep only the newest few and the best."""
        if self.world.rank != 0:
            return
        self.newest, best = path, path.parent / "best.json"
        try:
            self._prune(path)  # first: what follows may need the room
            if accuracy is not None and accuracy > self._best:
                text = json.dumps({"checkpoint": path.name, "accuracy": accuracy}) + "\n"
                with whole(best) as part:
                    part.write_text(text, encoding="utf-8")
                self._best = accuracy
                self._prune(path)  # the former best
        except OSError as error:
            sys.stderr.write(f"{path} was saved, but best.json or older checkpoints not changed after it: {error}\n")

    def _prune(self, path: Path) -> None:
        """Remove the checkpoints that `--keep` does not keep, now that `path` is complete."""
        kept = resume.best(path.parent).get("checkpoint")
        # A run that has gone back to an earlier step leaves later ones, of another course, alone.
        own = [each for each in newest_first(path.parent) if step_of(each) <= step_of(path)]
        for old in own[self.config.keep :]:
            if old.name != kept:
                remove(old)

    def _find(self) -> Optional[Saved]:
        """Rank 0's part of `restore`; raises `InputError`."""
        found = resume.find(self.config, self.parts["model"])
        if self.config.out is not None:
            self._best = float(resume.best(self.config.out).get("accuracy", -1.0))
        return found


def _room(directory: Path) -> str:
    """How much is free in `directory`, for a message; empty if the disk is unavailable."""
    try:
        return f" ({shutil.disk_usage(directory).free // 2**20:,} MB free in {directory})"
    except OSError:
        return ""
