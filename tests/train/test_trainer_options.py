"""Settings of train.py that change how it computes or what it shows, on one rank: two runs cover all of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.train.conftest import Alone, Together

pytestmark = pytest.mark.torch

SETTINGS = """
epochs: 1
samples: 256
data: synthetic
image-shape: 3x8x8
classes: 4
model: small
precision: bf16
deterministic: true
accumulate: 2
optimizer: sgd
scale_lr: 64
schedule: step
clip_norm: 1.5
label_smoothing: 0.1
ema_decay: 0.5
"""

ABOUT = """
import sys; sys.path.insert(0, {scripts!r})
import os, torch, train
from trainer.loader import Normalise
seen = {{"dtypes": set(), "formats": set()}}
normalise = Normalise.__call__
def spied(self, images):
    out = normalise(self, images)
    seen["dtypes"].add(str(out.dtype))
    seen["formats"].add(out.is_contiguous(memory_format=torch.channels_last))
    return out
Normalise.__call__ = spied
status = train.main()
print("computed", sorted(seen["dtypes"]), sorted(seen["formats"]), torch.are_deterministic_algorithms_enabled())
sys.exit(status)
"""


@pytest.fixture(scope="module")
def about(scripts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train.py, which prints at its end the type and memory order in which it computed, and the algorithms."""
    path: Path = tmp_path_factory.mktemp("about") / "about.py"
    path.write_text(ABOUT.format(scripts=str(scripts)))
    return path


@pytest.fixture(scope="module")
def first(alone: Alone, about: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Directory and output of a run with a YAML file of settings."""
    directory = tmp_path_factory.mktemp("first")
    (directory / "settings.yaml").write_text(SETTINGS)
    argv = [
        "--config",
        str(directory / "settings.yaml"),
        "--out",
        str(directory),
        "--tensorboard",
        str(directory / "tb"),
    ]
    run = alone(about, *argv, "--log-every", "1")
    assert run.returncode == 0, run.stderr
    return directory, run.stdout


def metrics(directory: Path, event: str) -> list[dict[str, Any]]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["event"] == event]


def newest(directory: Path) -> dict[str, Any]:
    import torch

    state: dict[str, Any] = torch.load(max(directory.glob("checkpoint-*.pt")), weights_only=True)
    return state


def test_a_yaml_file_sets_them_and_the_checkpoint_keeps_them(first: tuple[Path, str]) -> None:
    saved = newest(first[0])

    stored = saved["config"]
    assert (stored["precision"], stored["optimizer"], stored["scale_lr"], stored["deterministic"]) == (
        "bf16",
        "sgd",
        64,
        True,
    )
    assert stored["image_shape"] in ([3, 8, 8], (3, 8, 8))
    assert "average" in saved


def test_precision_memory_order_and_determinism_are_as_set(first: tuple[Path, str], alone: Alone, about: Path) -> None:
    other = alone(about, "--data", "synthetic", "--samples", "128", "--image-shape", "3x8x8", "--channels-last", "off")

    assert first[1].splitlines()[-1] == "computed ['torch.bfloat16'] [True] True"
    assert ", bfloat16: " in first[1].splitlines()[1]
    assert other.stdout.splitlines()[-1] == "computed ['torch.float32'] [False] False", other.stderr


FULL_DISK = """
import sys; sys.path.insert(0, {scripts!r})
import train
from torch.utils import tensorboard

def full(*_):
    raise OSError(28, "No space left on device")

setattr(tensorboard.SummaryWriter, {call!r}, full)
sys.exit(train.main())
"""


@pytest.mark.parametrize("call", ["add_scalar", "close"])
def test_an_event_file_that_cannot_be_written_is_reported_and_the_run_continues(
    alone: Alone, scripts: Path, tmp_path: Path, call: str
) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(FULL_DISK.format(scripts=str(scripts), call=call))

    run = alone(driver, "--epochs", "2", "--tensorboard", str(tmp_path / "board"))

    assert run.returncode == 0, run.stderr
    told = f"--tensorboard {tmp_path}/board: No space left on device; nothing more is written there\n"
    assert run.stderr.count(told) == 1


def test_event_files_that_cannot_be_made_are_refused(alone: Alone, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    run = alone("train.py", "--tensorboard", str(tmp_path / "file" / "board"))

    assert run.returncode == 2
    assert run.stderr == f"train.py: error: --tensorboard {tmp_path}/file/board: cannot write there: Not a directory\n"


def test_tensorboard_has_what_the_metrics_have(first: tuple[Path, str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    directory = first[0]
    events = EventAccumulator(str(directory / "tb"))
    events.Reload()

    for event, field in (("train", "loss"), ("train", "samples_per_s"), ("test", "accuracy")):
        points = events.Scalars(f"{event}/{field}")
        assert [point.step for point in points] == [row["step"] for row in metrics(directory, event)]
        assert [point.value for point in points] == pytest.approx([row[field] for row in metrics(directory, event)])


def test_a_repeated_run_has_the_same_result_and_is_compared_with_the_first(
    first: tuple[Path, str], alone: Alone, tmp_path: Path
) -> None:
    directory = first[0]
    argv = ["--config", str(directory / "settings.yaml"), "--out", str(tmp_path), "--log-every", "1"]
    run = alone(
        "train.py", *argv, "--baseline", str(directory / "metrics.jsonl"), "--report", str(tmp_path / "report.svg")
    )

    assert run.returncode == 0, run.stderr
    assert [row["loss"] for row in metrics(tmp_path, "train")] == [row["loss"] for row in metrics(directory, "train")]
    assert newest(tmp_path)["progress"] == newest(directory)["progress"]
    assert "of the baseline's speed per rank" in run.stdout
    picture = (tmp_path / "report.svg").read_text()
    panels = (
        "loss per sample",
        "test accuracy, %",
        "images/s",
        "time waiting for data, %",
        "learning rate",
        "own work per step",
    )
    assert [name for name in panels if name not in picture] == []
    assert "small on synthetic, 1 rank, ddp" in picture


def test_only_rank_0_needs_the_baseline(
    first: tuple[Path, str], ranks: Together, scripts: Path, tmp_path: Path
) -> None:
    """Hosts may have disks of their own."""
    driver = tmp_path / "driver.py"
    driver.write_text(
        f"import os, sys; sys.path.insert(0, {str(scripts)!r})\nimport train\n"
        "if os.environ['RANK'] == '1':\n    sys.argv[-1] = '/nowhere/metrics.jsonl'\n"
        "sys.exit(train.main())\n"
    )

    done = ranks(2, driver, "--epochs", "1", "--baseline", str(first[0] / "metrics.jsonl"))

    assert done.codes == [0, 0], done.stderr
    assert "of the baseline's speed per rank" in done.stdout


def test_ranks_that_start_from_a_file_have_its_weights(
    first: tuple[Path, str], ranks: Together, tmp_path: Path
) -> None:
    """With a tiny learning rate, the weights after a step are those of the file."""
    import torch

    directory, weights = first[0], tmp_path / "weights.pt"
    state = newest(directory)["model"]
    torch.save(state, weights)
    argv = ["--config", str(directory / "settings.yaml"), "--weights", str(weights), "--lr", "1e-12"]

    done = ranks(2, "train.py", *argv, "--weight-decay", "0", "--out", str(tmp_path), "--precision", "fp32")

    assert done.codes == [0, 0], done.stderr
    ended = newest(tmp_path)["model"]
    learnt = [name for name in state if "running" not in name and "num_batches" not in name]
    for name in learnt:
        torch.testing.assert_close(ended[name], state[name], rtol=0, atol=1e-5)


def test_weights_that_differ_between_ranks_are_refused_or_sent(ranks: Together, tmp_path: Path) -> None:
    (tmp_path / "drawn.py").write_text(
        "import os, torch\n"
        "def net(num_classes):\n"
        "    torch.manual_seed(int(os.environ['RANK']))\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))\n"
    )
    argv, env = ("--model", "drawn:net", "--image-shape", "1x8x8", "--epochs", "1"), {"PYTHONPATH": str(tmp_path)}

    refused = ranks(2, "train.py", *argv, env=env, watched=False)
    sent = ranks(2, "train.py", *argv, "--init", "broadcast", env=env)

    assert refused.codes == [2, 2]
    assert "rank 1 on " in refused.stderr
    assert "the weights at the start are not rank 0's (--init seed); --init broadcast sends them" in refused.stderr
    assert sent.codes == [0, 0], sent.stderr


FLAT = """
import atexit, torch, torch._inductor.config
torch._inductor.config.compile_threads = 1  # else processes that import torch anew
seen = set()
class Net(torch.nn.Sequential):
    def forward(self, images):
        seen.add(torch.compiler.is_compiling())
        return super().forward(images)
def net(num_classes):
    return Net(torch.nn.Flatten(), torch.nn.Linear(16, num_classes))
atexit.register(lambda: print("compiled", sorted(seen)))
"""


def test_a_compiled_model_learns(alone: Alone, tmp_path: Path) -> None:
    """A model that compiles quickly; it learns what the same model learns without the compiler."""
    (tmp_path / "flat.py").write_text(FLAT)
    env = {"PYTHONPATH": str(tmp_path)}
    argv = [
        "--data",
        "synthetic",
        "--samples",
        "256",
        "--image-shape",
        "1x4x4",
        "--classes",
        "4",
        "--model",
        "flat:net",
    ]
    argv += ["--epochs", "1", "--precision", "fp32"]

    plain = alone("train.py", *argv, "--metrics", str(tmp_path / "plain/metrics.jsonl"), env=env)
    run = alone("train.py", *argv, "--compile", "--metrics", str(tmp_path / "compiled/metrics.jsonl"), env=env)

    assert run.returncode == plain.returncode == 0, run.stderr + plain.stderr
    assert plain.stdout.splitlines()[-1] == "compiled [False]"
    assert run.stdout.splitlines()[-1] == "compiled [False, True]", "the evaluation needs no compiler"
    (without,), (with_it,) = (metrics(tmp_path / name, "train") for name in ("plain", "compiled"))
    assert with_it["loss"] == pytest.approx(without["loss"], rel=1e-4)
