"""The settings of `train.py` as one frozen object. A field's name is its flag, and its key in a `--config` file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Optional

from trainer.errors import InputError

GLOBAL_BATCH = 128
"""Default samples per step over all ranks: with it fixed, a run has the same result on any number of ranks."""
SYNCS = (
    "ddp",
    "fsdp",
    "average-gradients",
    "reduce-broadcast",
    "parameter-server",
    "async-parameter-server",
    "data-parallel",
)


def option(default: Any, help: str, *, metavar: Optional[str] = None, choices: Optional[tuple[str, ...]] = None) -> Any:
    """A field with its command-line metadata; a default of None in a non-Optional field depends on other settings."""
    return field(default=default, metadata={"help": help, "metavar": metavar, "choices": choices})


@dataclass(frozen=True)
class Config:
    """What to train, on which data, and where the results go."""

    # data
    data: str = option("digits", "DATASETS, a directory with a directory per class, or WebDataset shards: "
        "'data-{000000..000127}.tar' (%(default)s)", metavar="DATA")  # fmt: skip
    test_data: Optional[str] = option(
        None, "shards or directory to test on (a tenth of the data, held out)", metavar="DATA"
    )
    data_dir: str = option("~/.cache/torch/datasets", "where torchvision's data sets are", metavar="DIR")
    download: bool = option(False, "let torchvision download its data set")
    reader: str = option("index", "index: shards at random, exactly once; webdataset: as a stream, remote or piped "
        "(pipe:cmd)",
        choices=("index", "webdataset"))  # fmt: skip
    image_shape: tuple[int, int, int] = option(None, "what the model sees (as the data; 3x32x32 or 3x224x224 for "
        "torchvision)", metavar="CxHxW")  # fmt: skip
    samples: int = option(
        2048, "training samples of the synthetic data, an eighth more to test; an epoch of --reader webdataset"
    )
    classes: Optional[int] = option(None, "classes (as in the data; 10 of the synthetic)")
    augment: bool = option(True, "random crops and mirroring of photographs (directories, shards, CIFAR)")
    strict: bool = option(False, "a damaged image ends the run, instead of being skipped and counted")
    split: str = option("exact", "exact: each sample once per epoch over all ranks; shuffle: every rank its own "
        "shuffle by seed",
        choices=("exact", "shuffle"))  # fmt: skip
    sample_probability: Optional[float] = option(None,
        "share of the samples that a rank takes per epoch, with --split shuffle (1/ranks)",
        metavar="P")  # fmt: skip
    workers: Optional[int] = option(
        None, "threads per rank that load (its share of the cores for images, else 0: the training itself)"
    )

    # model
    model: str = option("auto", "small (auto takes it), a torchvision model such as resnet18, or module:function")
    weights: Optional[Path] = option(None, "file with weights to start from (--init file)", metavar="FILE")
    init: str = option(None, "how all ranks get the same start: each draws it from the seed (default), rank 0 sends "
        "it, or it is read from --weights; compared by a hash", choices=("seed", "broadcast", "file"))  # fmt: skip

    # synchronising
    sync: str = option("ddp", "how the ranks train one model together (default ddp)", choices=SYNCS)
    comm_hook: str = option("none", "what DDP sends gradients as", choices=("none", "bf16", "fp16", "powersgd"))
    replicas: Optional[int] = option(None, "devices of --sync data-parallel (all GPUs; 2 shares on a CPU)")

    # training
    epochs: int = option(None, "passes over the data (as suits it: digits 12, directories and shards 90)")
    batch_size: int = option(None, f"samples per rank and step ({GLOBAL_BATCH} shared among the ranks)")
    accumulate: int = option(1, "parts that a batch is taken through the model in, to save memory", metavar="N")
    optimizer: str = option("adamw", "what makes steps from gradients", choices=("adamw", "sgd"))
    lr: float = option(2e-3, "peak learning rate, not scaled by the number of ranks unless --scale-lr (%(default)s)")
    scale_lr: Optional[int] = option(None,
            "the linear rule: --lr is for BATCH samples a step over all ranks, and grows with them",
            metavar="BATCH")  # fmt: skip
    schedule: str = option("cosine", "of the learning rate, after --warmup", choices=("cosine", "step", "constant"))
    warmup: float = option(0.1, "share of the run in which the rate rises (%(default)s)", metavar="SHARE")
    momentum: float = option(0.9, "of sgd, with Nesterov's correction (%(default)s)")
    weight_decay: float = option(1e-2, "of weights, not of biases and norms (%(default)s)")
    clip_norm: Optional[float] = option(None, "greatest norm of all gradients together", metavar="NORM")
    label_smoothing: float = option(
        0.0, "share of the target that goes to all classes alike (%(default)s)", metavar="SHARE"
    )
    ema_decay: Optional[float] = option(None, "keep a moving average of the weights, and test that", metavar="DECAY")
    precision: str = option("auto", "auto: bf16 where the device computes faster in it (on a CPU for torchvision's "
        "models), else fp32",
        choices=("auto", "fp32", "bf16", "fp16"))  # fmt: skip
    channels_last: str = option(
        "auto", "memory order of images; auto: on for images with 3 channels", choices=("auto", "on", "off")
    )
    compile: bool = option(False, "compile the model with torch.compile")
    seed: int = option(0, "of weights, sample order and augmentation (%(default)s)")
    deterministic: bool = option(False, "only algorithms that give the same bits each time")

    # results
    log_every: int = option(50, "steps between rows, besides each epoch's (%(default)s)", metavar="STEPS")
    out: Optional[Path] = option(
        None, "directory for checkpoints, metrics and report; without it nothing is written", metavar="DIR"
    )
    metrics: Optional[Path] = option(
        None, "JSON lines with what the table shows (metrics.jsonl in --out)", metavar="FILE"
    )
    report: Optional[str] = option(None, "picture of the run at its end, .png or .svg (report.png in --out); none: no "
        "picture",
        metavar="FILE|none")  # fmt: skip
    tensorboard: Optional[Path] = option(None, "directory for TensorBoard's event files", metavar="DIR")
    baseline: Optional[Path] = option(None, "metrics of another run, to say how well this one scales", metavar="FILE")
    checkpoint_every: int = option(1, "epochs between checkpoints in --out (%(default)s)", metavar="EPOCHS")
    checkpoint_steps: Optional[int] = option(None, "steps between checkpoints, besides each epoch's", metavar="STEPS")
    keep: int = option(2, "checkpoints to keep, besides the best (%(default)s)", metavar="K")
    resume: str = option("auto", "auto: from the newest complete checkpoint in --out, if there is one; never: start "
        "anew, removing those in --out; FILE: from that checkpoint; a run that is started again uses its own",
        metavar="auto|never|FILE")  # fmt: skip

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.accumulate > self.batch_size:
            raise InputError(f"--accumulate {self.accumulate} parts cannot be made of --batch-size {self.batch_size}")
        if self.init == "file" and not self.weights:
            raise InputError("--init file needs --weights FILE")
        if self.comm_hook != "none" and self.sync != "ddp":
            raise InputError(f"--comm-hook belongs to --sync ddp, not to {self.sync}")
        if self.ema_decay and self.sync == "async-parameter-server":
            raise InputError(
                "--ema-decay needs ranks that hold the same weights; not with --sync async-parameter-server"
            )
        if self.precision == "fp16" and self.sync.endswith("parameter-server"):
            raise InputError(f"--precision fp16 scales gradients, for which --sync {self.sync} has no place; take bf16")

    def _check_numbers(self) -> None:
        at_least = dict.fromkeys(
            ("batch_size", "epochs", "samples", "classes", "log_every", "checkpoint_every", "keep"), 1
        )
        at_least |= {"accumulate": 1, "checkpoint_steps": 1, "replicas": 1, "scale_lr": 1, "workers": 0, "seed": 0}
        for name, least in at_least.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{flag(name)} must be at least {least}, not {value}")
        for name in ("lr", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{flag(name)} must be above 0, not {value}")
        for name in ("warmup", "label_smoothing", "ema_decay", "momentum", "weight_decay", "sample_probability"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise InputError(f"{flag(name)} must be between 0 and 1, not {value}")

    def to_json(self) -> dict[str, Any]:
        """Every field, as a value that JSON and `torch.load(weights_only=True)` accept."""
        values = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {name: str(value) if isinstance(value, Path) else value for name, value in values}


def flag(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.replace("_", "-")
