"""Settings of train.py that change how it computes or what it shows, on one rank: two runs have all of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from pathlib import Path

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


@pytest.fixture(scope="module")
def first(alone: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run by a YAML file."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "settings.yaml").write_text(SETTINGS)
    argv = ["--config", str(folder / "settings.yaml"), "--out", str(folder), "--tensorboard", str(folder / "tb")]
    run = alone("train.py", *argv, "--log-every", "1")
    assert run.returncode == 0, run.stderr
    return folder


def metrics(folder: Path, event: str) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["event"] == event]


def test_a_yaml_file_sets_them_and_the_checkpoint_keeps_them(first: Path) -> None:
    saved: dict[str, Any] = torch.load(next(first.glob("checkpoint-*.pt")), weights_only=True)

    stored = saved["config"]
    assert (stored["precision"], stored["optimizer"], stored["scale_lr"], stored["deterministic"]) == ("bf16", "sgd", 64, True)
    assert stored["image_shape"] in ([3, 8, 8], (3, 8, 8))
    assert "average" in saved


def test_tensorboard_has_what_the_metrics_have(first: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(first / "tb"))
    events.Reload()
    tags = events.Tags()["scalars"]
    (loss,) = [tag for tag in tags if "loss" in tag and "test" not in tag]

    assert [point.value for point in events.Scalars(loss)] == pytest.approx([row["loss"] for row in metrics(first, "train")])


def test_a_deterministic_run_comes_out_the_same_and_compares_itself(first: Path, alone: Any, tmp_path: Path) -> None:
    argv = ["--config", str(first / "settings.yaml"), "--out", str(tmp_path), "--log-every", "1"]
    run = alone("train.py", *argv, "--baseline", str(first / "metrics.jsonl"), "--report", str(tmp_path / "report.svg"))

    assert run.returncode == 0, run.stderr
    assert [row["loss"] for row in metrics(tmp_path, "train")] == [row["loss"] for row in metrics(first, "train")]
    assert "baseline" in run.stdout
    assert "<svg" in (tmp_path / "report.svg").read_text()


def test_ranks_that_start_from_a_file_go_on_with_its_weights(first: Path, torchrun: Any, tmp_path: Path) -> None:
    """With a rate of next to nothing, the weights after a step are those of the file."""
    weights = first / "weights.pt"
    state: dict[str, Any] = torch.load(next(first.glob("checkpoint-*.pt")), weights_only=True)["model"]
    torch.save(state, weights)
    argv = ["--config", str(first / "settings.yaml"), "--init", "file", "--weights", str(weights), "--lr", "1e-12"]

    run = torchrun(2, "train.py", *argv, "--weight-decay", "0", "--out", str(tmp_path), "--precision", "fp32")

    assert run.returncode == 0, run.stderr
    ended = torch.load(next(tmp_path.glob("checkpoint-*.pt")), weights_only=True)["model"]
    learnt = [name for name in state if "running" not in name and "num_batches" not in name]
    for name in learnt:
        torch.testing.assert_close(ended[name], state[name], rtol=0, atol=1e-5)


def test_weights_that_differ_between_ranks_are_refused(torchrun: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "drawn.py").write_text(
        "import os, torch\n"
        "def net(num_classes):\n"
        "    torch.manual_seed(int(os.environ['RANK']))\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    refused = torchrun(2, "train.py", "--model", "drawn:net", "--image-shape", "1x8x8", "--epochs", "1")

    assert refused.returncode == 1
    assert "the weights at the start are not rank 0's (--init seed); --init broadcast sends them" in refused.stderr


@pytest.mark.timeout(330)  # compiling, on a busy machine
def test_a_compiled_model_learns(alone: Any, tmp_path: Path) -> None:
    run = alone("train.py", "--epochs", "1", "--samples", "128", "--data", "synthetic", "--image-shape", "1x8x8", "--compile",
        "--classes", "4", "--metrics", str(tmp_path / "metrics.jsonl"))  # fmt: skip

    assert run.returncode == 0, run.stderr
    assert len(metrics(tmp_path, "train")) == 1
