"""The data sets that `--data` can name: each is a module of this package, with its `Dataset`s in `DATASETS`."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from trainer.datasets.dataset import Data as Data
from trainer.datasets.dataset import Dataset
from trainer.errors import InputError

if TYPE_CHECKING:
    from trainer.config import Config

_MODULES = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
ALL: tuple[Dataset, ...] = tuple(one for module in _MODULES for one in getattr(module, "DATASETS", ()))
NAMES = tuple(one.name for one in ALL if one.name)
"""The names that `--data` accepts, besides a path."""


def find(data: str, reader: str) -> Dataset:
    """The data set that `--data` and `--reader` select; if there is none, one whose `load` raises `InputError`."""
    named = (one for one in ALL if one.name == data)
    taking = (one for one in ALL if one.takes(data, reader))
    return next(named, None) or next(taking, None) or Dataset(_nowhere)


def _nowhere(config: Config) -> Data:
    known = ", ".join(NAMES)
    raise InputError(
        f"--data {config.data}: no such directory, and none of {known}; shards are named like data-{{000..127}}.tar"
    )


def prepare(config: Config, rank: int, world_size: int) -> None:
    """Prepare what ranks share before they load the data; raises `InputError`."""
    found = find(config.data, config.reader)
    if found.prepare is not None:
        found.prepare(config, rank, world_size)


def load_data(config: Config, world_size: int) -> Data:
    """The data that `config` names; raises `InputError` if it is unavailable, or less than one step of all ranks."""
    data = find(config.data, config.reader).load(config)
    step_samples, samples = config.batch_size * world_size, len(data.train)
    if step_samples > samples:
        most = samples // world_size
        advice = f"--batch-size can be at most {most}" if most else f"start at most {samples} ranks"
        raise InputError(
            f"--batch-size {config.batch_size} on {world_size} rank{'s' * (world_size > 1)} makes {step_samples} "
            f"samples a step, more than the {samples} training samples of {config.data}; {advice}"
        )
    return data
