"""A summary of a run: a few lines, and a picture."""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from trainer.errors import InputError

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.saved import Saved

STRAGGLER = 1.1
"""A rank that works this many times as long as the median rank holds the others up."""


def check_report(config: Config) -> None:
    """Raise `InputError` if a picture or event files are requested but cannot be made."""
    if config.report not in (None, "none"):
        if Path(config.report).suffix not in (".png", ".svg"):
            raise InputError(f"--report {config.report}: name a .png or .svg file, or none")
        if importlib.util.find_spec("matplotlib") is None:
            raise InputError("--report needs matplotlib: pip install matplotlib")
    if config.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise InputError("--tensorboard needs tensorboard: pip install tensorboard")


def read_baseline(config: Config) -> Optional[float]:
    """Images per second and rank of the run that `--baseline` names; raises `InputError`."""
    if config.baseline is None:
        return None
    try:
        records = [json.loads(line) for line in config.baseline.read_text(encoding="utf-8").splitlines()]
        start, rows = _latest(records)
        return _throughput(rows) / float(start["world_size"])
    except OSError as error:
        raise InputError(f"--baseline {config.baseline}: {error.strerror}") from error
    except (ValueError, KeyError) as error:
        raise InputError(f"--baseline {config.baseline}: not the metrics of a run of train.py") from error


def records_until(path: Path, saved: Saved) -> list[dict[str, Any]]:
    """The records of `path` up to a checkpoint: a killed run may have written more after it, and half a line."""
    kept, end = [], (saved.progress["step"], saved.scored)
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
            if (record["step"], record["event"] == "test") <= end:
                kept.append(record)
        except (ValueError, KeyError, TypeError):
            continue
    return kept


def summary(records: list[dict[str, Any]], baseline: Optional[float], ceiling: Optional[float] = None) -> list[str]:
    """Throughput, share of loading, and the slowest rank, as lines; none for a run without a row.

    `baseline`: images per second and rank of another run; `ceiling`: the most that one GPU could reach.
    """
    start, rows = _latest(records)
    if not rows:
        return []
    ranks, speed = start["world_size"], _throughput(rows)
    load = statistics.median(_load_share(row) for row in rows)
    line = f"{speed:,.0f} images/s, {load:.0%} of the time waiting for data"
    if baseline:
        line += f"; {speed / ranks / baseline:.0%} of the baseline's speed per rank"
    if ceiling:
        line += f"; {speed / ranks / ceiling:.0%} of the roofline, {ceiling:,.0f} images/s per GPU"
    lines = [line]
    own = _own_time(rows, ranks)
    if own and ranks > 1:
        slowest, usual = max(range(ranks), key=own.__getitem__), statistics.median_low(own)
        if own[slowest] > usual * STRAGGLER:
            lines.append(
                f"slowest: rank {slowest} on {start['hosts'][slowest]}, "
                f"{own[slowest] / usual:.2f} times the median's own work"
            )
    return lines


def draw(records: list[dict[str, Any]], config: Config) -> None:
    """Draw loss, accuracy, throughput, share of loading, and own work by rank. A failure is printed, not raised."""
    file = config.report or (str(config.out / "report.png") if config.out else "none")
    rows = [record for record in records if record["event"] == "train"]
    if file == "none" or not rows:
        return
    if importlib.util.find_spec("matplotlib") is None:
        sys.stderr.write(f"no {file} without matplotlib: pip install matplotlib, or --report none\n")
        return
    from matplotlib.figure import Figure  # not pyplot: it needs no display, and imports in half the time

    ranks = [record for record in records if record["event"] == "start"][-1]["world_size"]
    tests = [record for record in records if record["event"] == "test"]
    figure = Figure(figsize=(11, 7), layout="constrained")
    (loss, accuracy, own), (speed, load, rate) = figure.subplots(2, 3)
    samples = [row["samples"] for row in rows]
    tested = [record["samples"] for record in tests]
    loss.plot(samples, [row["loss"] for row in rows], label="training")
    loss.plot(tested, [record["loss"] for record in tests], label="test")
    loss.legend()
    accuracy.plot(tested, [record["accuracy"] * 100 for record in tests], marker=".")
    speed.plot(samples, [row["samples_per_s"] for row in rows])
    load.plot(samples, [_load_share(row) * 100 for row in rows])
    rate.plot(samples, [row["lr"] for row in rows])
    work = _own_time(rows, ranks)
    own.bar(range(len(work)), [one * 1000 for one in work])
    names = {loss: "loss per sample", accuracy: "test accuracy, %", speed: "images/s", load: "time waiting for data, %"}
    for panel, name in {**names, rate: "learning rate", own: "own work per step and rank, ms"}.items():
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("rank" if panel is own else "samples")
        panel.set_ylim(bottom=0)
    figure.suptitle(f"{config.model} on {config.data}, {ranks} rank{'s' * (ranks > 1)}, {config.sync}")
    try:
        figure.savefig(file)
    except OSError as error:
        sys.stderr.write(f"no {file}: {error.strerror}\n")


def _latest(records: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The start before the latest row, and all rows since the number of ranks last changed."""
    start: dict[str, Any] = {}
    found, rows = start, list[dict[str, Any]]()
    for record in records:
        if record["event"] == "start":
            start = record
        elif record["event"] == "train":
            if start["world_size"] != found.get("world_size"):
                rows = []
            found = start
            rows.append(record)
    return found, rows


def _throughput(rows: list[dict[str, Any]]) -> float:
    """Images per second, the median of the rows; the first, which warms up, is left out if there are more."""
    speeds = [row["samples_per_s"] for row in rows]
    return float(statistics.median(speeds[1:] or speeds))


def _load_share(row: dict[str, Any]) -> float:
    load = float(row["load_us_per_sample"])
    return load / (load + float(row["train_us_per_sample"]))


def _own_time(rows: list[dict[str, Any]], ranks: int) -> list[float]:
    """Each rank's own work in seconds per step, the median of the rows with this number of ranks; empty without one."""
    own = [row["own_s_per_step"] for row in rows if len(row.get("own_s_per_step", [])) == ranks]
    return [statistics.median(values) for values in zip(*own)]
