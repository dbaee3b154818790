"""A wrong request gets one clear error, on rank 0, and every rank ends."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest
import torch
from trainer.config import GLOBAL_BATCH
from trainer.data import load_data
from trainer.errors import InputError
from trainer.flags import parse
from trainer.model import build_model

if TYPE_CHECKING:
    from pathlib import Path


def prepare(*argv: str, world_size: int = 2) -> None:
    """What each rank does before it communicates."""
    flags = parse(argv, world_size)
    build_model(flags, load_data(flags, world_size).classes, torch.device("cpu"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model", "resnet81"], r"unknown model 'resnet81': did you mean resnet18 or .*--list-models prints all \d+"),
        (["--model", "zzz"], r"unknown model 'zzz': --list-models prints all \d+"),
        (["--data", "nmist"], "--data nmist: no such folder, and none of digits, synthetic, mnist"),
        (["--data", "mnist", "--data-dir", "/nowhere"], "--data mnist: not in /nowhere; add --download, or set --data-dir"),
        (["--optimizer", "adam"], "invalid choice: 'adam' .*adamw.*sgd"),
        (["--warmup", "2"], "--warmup must be between 0 and 1, not 2.0"),
        (["--comm-hook", "bf16", "--sync", "fsdp"], "--comm-hook belongs to --sync ddp, not to fsdp"),
        (["--init", "file"], "--init file needs --weights FILE"),
        (["--weights", "/nowhere.pt"], "--weights /nowhere.pt: No such file"),
        (["--model", "nowhere:make"], "--model nowhere:make: No module named 'nowhere'"),
        (["--model", "math:sqrt"], "--model math:sqrt: .*must return a torch.nn.Module"),
        (["--config", "/nowhere.toml"], "--config /nowhere.toml: No such file"),
        (
            ["--batch-size", "720"],
            "--batch-size 720 on 2 ranks makes 1440 samples .* 1438 .* digits; --batch-size can be at most 719",
        ),
        (["--batch-size", "0"], "--batch-size must be at least 1, not 0"),
        (["--epochs", "0"], "--epochs must be at least 1, not 0"),
        (["--epochs", "-3"], "--epochs must be at least 1, not -3"),
        (["--epochs", "many"], "--epochs: invalid int value: 'many'"),
        (["--lr", "0"], "--lr must be above 0, not 0.0"),
        (["--lr", "nan"], "--lr must be above 0, not nan"),
        (["--seed", "-1"], "--seed must be at least 0, not -1"),
        (["--workers", "-1"], "--workers must be at least 0, not -1"),
        (["--image-shape", "28x28"], "'28x28' is not of the form 3x224x224"),
        (["--model", "resnet18", "--image-shape", "1x32x32"], "resnet18 cannot take images of 1x32x32"),
        (["--model", "alexnet", "--image-shape", "3x32x32"], "alexnet cannot take .* try --image-shape 3x224x224"),
        (["--bogus"], "unrecognized arguments: --bogus; --help lists all flags"),
    ],
)
def test_a_wrong_flag_is_named_with_what_would_do(argv: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(*argv)


def test_more_ranks_than_samples_are_refused() -> None:
    with pytest.raises(InputError, match="start at most 1438 ranks"):
        prepare(world_size=2000)


@pytest.mark.parametrize(("package", "argv"), [("sklearn", []), ("torchvision", ["--model", "resnet18"])])
def test_a_missing_package_is_named(package: str, argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else real(name))

    with pytest.raises(InputError, match=r"pip install 'distlaunch\[train\]'"):
        prepare(*argv)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 64])
def test_the_default_batch_is_shared_among_the_ranks(world_size: int) -> None:
    assert parse([], world_size).batch_size == GLOBAL_BATCH // world_size


def refusal(two_ranks: Any, *argv: str) -> str:
    """The line that rank 0 alone prints; both ranks must end with status 2."""
    with two_ranks("train.py", *argv) as processes:
        outputs = [process.communicate(timeout=60) for process in processes]
        assert [process.returncode for process in processes] == [2, 2], outputs
    assert outputs[1] == ("", "")
    assert outputs[0][0] == ""
    line: str = outputs[0][1]
    assert line.startswith("train.py: error: ")
    assert line.count("\n") == 1
    return line


def test_two_ranks_with_a_wrong_flag_print_one_line(two_ranks: Any) -> None:
    assert "--epochs must be at least 1" in refusal(two_ranks, "--epochs", "0")


def test_a_folder_that_cannot_be_written_is_refused(two_ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert "cannot write there: Not a directory" in refusal(two_ranks, "--out", str(tmp_path / "file" / "out"))


def test_metrics_that_cannot_be_written_are_refused(two_ranks: Any, tmp_path: Path) -> None:
    assert f"--metrics {tmp_path}" in refusal(two_ranks, "--metrics", str(tmp_path))


def test_help_and_the_list_of_models_come_from_rank_0_alone(torchrun: Any) -> None:
    shown, listed = torchrun(2, "train.py", "--help"), torchrun(2, "train.py", "--list-models")

    assert shown.stdout.count("usage: train.py") == 1
    assert listed.stdout.splitlines().count("resnet18") == 1
    assert (shown.returncode, listed.returncode) == (0, 0)
