"""The table that rank 0 prints, and the same numbers as JSON lines and for TensorBoard."""

from __future__ import annotations

import itertools
import json
import math
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Optional

import torch
from torch import Tensor, nn

from trainer.bar import Bar
from trainer.board import Board
from trainer.errors import InputError, TrainingError
from trainer.files import whole
from trainer.loop import OwnTime
from trainer.progress_file import ProgressFile
from trainer.report import check_report, draw, read_baseline, records_until, summary

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.checkpoint import Checkpoints, Progress
    from trainer.config import Config
    from trainer.datasets.dataset import Data
    from trainer.loader import Batch
    from trainer.loop import Score
    from trainer.sources import Numbers
    from trainer.stop import StopVote
    from trainer.world import World

HEADER = "epoch      samples    batch  loss/sample  load us/sample  train us/sample  test accuracy"


class Row:
    """One rank's measurements since the row began."""

    def __init__(self) -> None:
        self.losses: list[tuple[Tensor, int, Numbers]] = []
        """Of each step: the loss, how many samples count, and their numbers; not the batch, whose images would stay."""

        self.samples, self.load_s, self.begin_s = 0, 0.0, time.perf_counter()

    def add(self, batch: Batch, loss: Tensor) -> None:
        """Count one step."""
        self.losses.append((loss, batch.samples, batch.numbers))
        self.samples += batch.samples
        self.load_s += batch.load_s


class RunLog:
    """Measures rows and prints them; every rank holds one and calls the same methods, rank 0 writes.

    A row's loss is the mean over its samples. Its times are host times per sample of a rank's own, waiting for data and
    training, averaged over the ranks. The GPU is waited for at the end of each row and nowhere else.
    """

    def __init__(self, config: Config, world: World, checkpoints: Checkpoints) -> None:
        """Open `--metrics`; exit the run if that fails."""
        self.config, self.world, self.checkpoints, self.own_time = config, world, checkpoints, OwnTime(world.device)
        self.records: list[dict[str, Any]] = []
        """All records, including those of the runs that this one resumes."""
        self._saving: Optional[Path] = None
        self.metrics = world.together(self._open)
        self.bar, self.told = Bar(world.rank == 0), ProgressFile()
        board = config.tensorboard if world.rank == 0 else None
        self.board = world.together(lambda: Board(board) if board else None)

    def _open(self) -> Optional[Path]:
        """Rank 0's metrics file, started with a resumed run's records up to its checkpoint; raises `InputError`."""
        check_report(self.config)
        self.baseline = read_baseline(self.config) if self.world.rank == 0 else None
        path, resumed = self.config.metrics, self.checkpoints.resumed
        if path is None or self.world.rank != 0:
            return None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.records = records_until(path, resumed) if resumed else []
            with whole(path) as part:
                part.write_text("".join(json.dumps(record) + "\n" for record in self.records), encoding="utf-8")
        except OSError as error:
            raise InputError(f"--metrics {path}: cannot write there: {error.strerror}") from error
        return path

    def start(self, data: Data, model: nn.Module, progress: Progress, dtype: torch.dtype) -> None:
        """Print what is trained, where, and the table's header."""
        config, world, resumed = self.config, self.world, self.checkpoints.resumed
        hosts, problems = zip(*world.all((socket.gethostname(), data.problems)))
        for problem in dict.fromkeys(itertools.chain(*problems)):  # hosts may have copies of their own
            self.say(f"warning: {problem}")
        parameters = sum(parameter.numel() for parameter in model.parameters())
        self.say(
            f"{config.data}: {len(data.train):,} training and {len(data.test):,} test samples, "
            f"{'x'.join(map(str, config.image_shape))}, {data.classes} classes; "
            f"model {config.model}, {parameters:,} parameters"
        )
        how = "" if config.sync == "ddp" else f", {config.sync}"
        how += "" if dtype == torch.float32 else f", {str(dtype).rpartition('.')[2]}"
        self.say(
            f"{_count(world.world_size, 'rank')}, {world.backend} on {world.device.type}{how}: "
            f"{config.batch_size} samples per rank and step, {config.batch_size * world.world_size} in all; "
            f"{_count(config.epochs, 'epoch')}"
        )
        if resumed:
            into = f" and {progress.epoch_samples:,} samples of the next" if progress.epoch_samples else ""
            self.say(f"resumed from {resumed.path}: {_count(progress.epoch, 'epoch')}{into} done")
        elif config.out is not None and config.resume == "auto":
            self.say(f"no checkpoint in {config.out}: from the start")
        if progress.epoch < config.epochs or (resumed and not resumed.scored):
            self.say(HEADER)
        origin = {"resumed_from": resumed.path if resumed else None, "step": progress.step, "torch": torch.__version__}
        where = {
            "world_size": world.world_size,
            "backend": world.backend,
            "device": world.device.type,
            "hosts": list(hosts),
        }
        self.record("start", **origin, **where, parameters=parameters, config=config.to_json())

    def begin_row(self) -> None:
        """Start measuring a row; time spent before it (an evaluation, a checkpoint) belongs to no row."""
        self.own_time.take_s()
        self._row = Row()

    @property
    def steps(self) -> int:
        """Steps since the row began."""
        return len(self._row.losses)

    def add(self, batch: Batch, loss: Tensor, done: Progress, epoch_samples: int) -> None:
        """Count one step; `loss` is the mean over the rank's samples, and is not waited for."""
        self._record_saved()
        self._row.add(batch, loss)
        self.bar.show(done.epoch, done.epoch_samples, epoch_samples)
        if self.told.due:
            self.told.tell(done.step, done.step + self._steps_left(done, epoch_samples))

    def _steps_left(self, done: Progress, epoch_samples: int) -> int:
        size = self.config.batch_size * self.world.world_size
        epochs = max(0, self.config.epochs - done.epoch - 1)
        return math.ceil((epoch_samples - done.epoch_samples) / size) + epochs * math.ceil(epoch_samples / size)

    def row(self, progress: Progress, lr: float) -> None:
        """End a row within an epoch, and start the next."""
        self.say(self.end_row(progress, lr))
        self.begin_row()

    def end_row(self, progress: Progress, lr: float) -> str:
        """Record the row that `begin_row` started, and return it as text, up to the accuracy.

        Raises `TrainingError` on all ranks if a loss is not finite.
        """
        row = self._row
        # Waits for the GPU, so the times below include its work:
        losses = torch.stack([loss for loss, *_ in row.losses]).double().tolist()
        wall_s, own_s = time.perf_counter() - row.begin_s, self.own_time.take_s() + row.load_s
        own_loss = sum(loss * samples for loss, (_, samples, _) in zip(losses, row.losses) if samples)
        every = self.world.gather(own_loss, row.samples, row.load_s, wall_s, own_s / max(1, self.steps))
        loss, samples, load_s, total_s, _ = map(sum, zip(*every))
        if not math.isfinite(loss):
            self._no_number(losses, progress)
        samples = max(1, samples)  # all may be damaged
        numbers = {
            "batch_size": self.config.batch_size * self.world.world_size,
            "loss": loss / samples,
            "load_us_per_sample": load_s / samples * 1e6,
            "train_us_per_sample": (total_s - load_s) / samples * 1e6,
            "samples_per_s": samples / (total_s / self.world.world_size),
        }
        self.told.loss = numbers["loss"]
        epoch = progress.epoch + (progress.epoch_samples > 0)
        own = [round(one[4], 6) for one in every]
        self.record(
            "train", epoch=epoch, step=progress.step, samples=progress.samples, **numbers, lr=lr, own_s_per_step=own
        )
        return (
            f"{epoch:5d}  {progress.samples:11,d}  {numbers['batch_size']:7d}  {numbers['loss']:11.4f}"
            f"  {numbers['load_us_per_sample']:14.1f}  {numbers['train_us_per_sample']:15.1f}"
        )

    def empty_row(self, progress: Progress) -> str:
        """A row without steps, up to the accuracy: they were before the run resumed."""
        return f"{progress.epoch:5d}  {progress.samples:11,d}{'':55}"

    def _no_number(self, losses: list[float], progress: Progress) -> None:
        """Find the first step and rank with a loss that is not finite, and raise."""
        first = next((place for place, loss in enumerate(losses) if not math.isfinite(loss)), None)
        mine = None
        if first is not None:
            mine = (
                progress.step - len(losses) + 1 + first,
                self.world.rank,
                losses[first],
                self._row.losses[first][2][:16].tolist(),
            )
        step, rank, loss, numbers = min(one for one in self.world.all(mine) if one)
        newest = self.world.from_rank_0(str(self.checkpoints.finish() or "none"))
        raise TrainingError(
            f"the loss is {loss} at step {step} on rank {rank}, samples {', '.join(map(str, numbers))}; "
            f"newest checkpoint: {newest}. A lower --lr, --clip-norm 1 or --precision fp32 may help"
        )

    def epoch(self, row: str, progress: Progress, score: Score, damaged: int) -> None:
        """Print an epoch's last row with the test accuracy."""
        self.say(f"{row}  {score.accuracy:13.2%}")
        if damaged:
            self.say(f"{_count(damaged, 'damaged sample')} skipped so far")
        self.record(
            "test",
            epoch=progress.epoch,
            step=progress.step,
            samples=progress.samples,
            damaged=damaged,
            **_fields(score),
        )

    def saved(self, path: Optional[Path]) -> None:
        """Note a checkpoint that is being written; it is recorded after the next step, when its stall is known."""
        self._saving = path

    def _record_saved(self) -> None:
        if (path := self._saving) is not None:
            self.record(
                "checkpoint", step=int(path.stem.rpartition("-")[2]), file=str(path), stall_s=self.checkpoints.stall_s
            )
            self._saving = None

    def finished(self, score: Score, progress: Progress, ceiling: Optional[float] = None) -> None:
        """Print the last lines of a finished run, and draw it; `ceiling`: a GPU's roofline, in images per second."""
        self._record_saved()
        self.told.tell(progress.step, progress.step)
        for line in summary(self.records, self.baseline, ceiling) if self.world.rank == 0 else ():
            self.say(line)
        self.say(f"test accuracy {score.accuracy:.2%} ({score.correct:,} of {score.total:,})")
        self.record("finished", step=progress.step, samples=progress.samples, **_fields(score), roofline=ceiling)
        if self.world.rank == 0:
            draw(self.records, self.config)
        self.close()

    def stopped(self, progress: Progress, saved: Optional[Path], stop: StopVote) -> None:
        """Print the last line of a run that a signal stopped."""
        self._record_saved()
        kept = f"saved {saved}" if saved else "nothing saved" if self.config.out else "nothing saved without --out"
        name = stop.signal_name
        self.say(f"{name}: stopped at step {progress.step} after {progress.samples:,} samples; {kept}")
        file = str(saved) if saved else None
        self.record("stopped", step=progress.step, samples=progress.samples, signal=name, checkpoint=file)
        self.close()

    def close(self) -> None:
        """Flush and close TensorBoard's event file."""
        if self.board:
            self.board.close()

    def say(self, text: str) -> None:
        """Print one line, in one write, on rank 0."""
        if self.world.rank == 0:
            self.bar.clear()
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def record(self, event: str, **values: Any) -> None:
        """Append one JSON line to the metrics, on rank 0; a write error is printed once and does not end the run."""
        if self.world.rank != 0:
            return
        record = {"event": event, "time_s": time.time(), **values}
        self.records.append(record)
        if self.board and event in ("train", "test"):
            self.board.add(event, values)
        if self.metrics is not None:
            try:
                with self.metrics.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
            except OSError as error:
                sys.stderr.write(f"--metrics {self.metrics}: {error.strerror}; nothing more is written there\n")
                self.metrics = None


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _fields(score: Score) -> dict[str, float]:
    about = {"accuracy": score.accuracy, "accuracy5": score.accuracy5, "loss": score.loss}
    return {**about, "correct": score.correct, "total": score.total}
