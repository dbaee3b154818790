"""train.py end to end, with real ranks over gloo."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from pathlib import Path

WEIGHTS_DRIVER = """
import sys; sys.path.insert(0, {scripts!r})
import pathlib, torch, train
from trainer.world import process_group
with process_group() as world:
    trainer = train.Trainer(world)
    start = world.from_rank_0([p.detach().clone() for p in trainer.net.parameters()])
    assert all(map(torch.equal, start, trainer.net.parameters())), "start weights differ"
    noise = [None] * world.world_size
    torch.distributed.all_gather_object(noise, torch.rand(1).item())
    assert len(set(noise)) == world.world_size, "ranks draw the same random numbers"
    trainer.train()
    end = world.from_rank_0([p.detach().clone() for p in trainer.net.parameters()])
    assert all(map(torch.equal, end, trainer.net.parameters())), "end weights differ"
    assert not all(map(torch.equal, start, end)), "nothing was learnt"
    del trainer
threads = [task.joinpath("comm").read_text() for task in pathlib.Path("/proc/self/task").iterdir()]
assert not any("gloo" in name for name in threads), "threads outlive the process group, and may abort the exit"
"""


def records(path: Path, event: str | None = None) -> list[dict[str, Any]]:
    """The metrics, each line parsed."""
    every = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [record for record in every if event in (None, record["event"])]


def newest(out: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(max(out.glob("checkpoint-*.pt")), weights_only=True)
    return state


@pytest.fixture(scope="module")
def digits(torchrun: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Output and folder of a run on two ranks with the default flags."""
    out = tmp_path_factory.mktemp("digits")
    run = torchrun(2, "train.py", "--out", str(out))
    assert run.returncode == 0, run.stderr
    return run.stdout, out


def test_two_ranks_learn_the_digits(digits: tuple[str, Path]) -> None:
    stdout, out = digits
    (end,) = records(out / "metrics.jsonl", "finished")

    assert end["accuracy"] > 0.97
    assert stdout.splitlines()[-1] == f"test accuracy {end['accuracy']:.2%} ({end['correct']} of 359)"


def test_the_table_says_what_was_measured_and_in_which_units(digits: tuple[str, Path]) -> None:
    about, where, origin, header, *rows = digits[0].splitlines()[:16]

    assert about.startswith("digits: 1,438 training and 359 test samples, 1x8x8, 10 classes; model small")
    assert where == "2 ranks, gloo on cpu: 64 samples per rank and step, 128 in all; 12 epochs"
    assert origin == f"no checkpoint in {digits[1]}: from the start"
    assert header.split("  ")[0] == "epoch"
    assert all(column in header for column in ("samples", "batch", "loss/sample", "load us/sample", "train us/sample"))
    assert [row.split()[:3] for row in rows] == [[str(epoch), f"{epoch * 1438:,}", "128"] for epoch in range(1, 13)]


def test_the_metrics_are_whole_json_lines(digits: tuple[str, Path]) -> None:
    every = records(digits[1] / "metrics.jsonl")

    assert [record["event"] for record in every] == ["start", *["train", "test", "checkpoint"] * 12, "finished"]
    train = every[1::3][:-1]
    assert [record["samples"] for record in train] == [epoch * 1438 for epoch in range(1, 13)]
    assert all(record["load_us_per_sample"] > 0 and record["train_us_per_sample"] > 0 for record in train)
    assert train[0]["loss"] > train[-1]["loss"]
    assert every[0]["config"]["epochs"] == 12
    assert (every[0]["world_size"], every[0]["backend"]) == (2, "gloo")


def test_the_two_newest_checkpoints_are_kept_and_no_part_is_left(digits: tuple[str, Path]) -> None:
    names = sorted(path.name for path in digits[1].iterdir())

    best = json.loads((digits[1] / "best.json").read_text())["checkpoint"]
    kept = {"best.json", best, "checkpoint-00000132.pt", "checkpoint-00000144.pt", "metrics.jsonl", "report.png"}
    assert names == sorted(kept)


def test_the_same_command_again_finds_nothing_left_to_do(digits: tuple[str, Path], alone: Any) -> None:
    stdout, out = digits
    run = alone("train.py", "--out", str(out))

    assert run.returncode == 0, run.stderr
    assert f"resumed from {out / 'checkpoint-00000144.pt'}: 12 epochs done" in run.stdout
    assert run.stdout.splitlines()[-1] == stdout.splitlines()[-1]


def test_one_process_without_a_launcher_has_the_result_of_two_ranks(alone: Any, torchrun: Any, tmp_path: Path) -> None:
    one = alone("train.py", "--epochs", "2", "--metrics", str(tmp_path / "one"))
    two = torchrun(2, "train.py", "--epochs", "2", "--metrics", str(tmp_path / "two"))

    assert (one.returncode, two.returncode) == (0, 0), one.stderr + two.stderr
    losses = [[record["loss"] for record in records(tmp_path / name) if "loss" in record] for name in ("one", "two")]
    assert len(losses[0]) == 5
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_all_ranks_hold_the_same_weights_from_start_to_end(torchrun: Any, scripts: Path, tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(WEIGHTS_DRIVER.format(scripts=str(scripts)))

    run = torchrun(2, driver, "--epochs", "1", "--batch-size", "100")

    assert run.returncode == 0, run.stderr


def test_resnet18_trains_on_synthetic_images(torchrun: Any, tmp_path: Path) -> None:
    flags = "--model resnet18 --data synthetic --image-shape 3x32x32 --samples 24 --classes 4 --batch-size 4 --log-every 2"
    run = torchrun(2, "train.py", *flags.split(), "--workers", "1", "--out", str(tmp_path))

    assert run.returncode == 0, run.stderr
    assert [record["samples"] for record in records(tmp_path / "metrics.jsonl", "train")] == [16, 24]
    assert "bn1.running_mean" in newest(tmp_path)["model"]


@pytest.fixture(scope="module")
def stopped(two_ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, str, str]]]:
    """Folder of a run that SIGTERM ended in mid-training, and each rank's status and output."""
    out = tmp_path_factory.mktemp("stopped")
    with two_ranks("train.py", "--out", str(out)) as processes:
        for line in processes[0].stdout:
            if line.startswith("    2 "):
                break
        for process in processes:
            process.send_signal(signal.SIGTERM)
        outputs = [process.communicate(timeout=60) for process in processes]
        return out, [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


def test_sigterm_saves_and_ends_every_rank_with_143(stopped: tuple[Path, list[tuple[int, str, str]]]) -> None:
    out, (first, second) = stopped
    state = newest(out)["progress"]

    assert (first[0], second[0]) == (143, 143), first[2] + second[2]
    saved = out / f"checkpoint-{state['step']:08d}.pt"
    assert (
        first[1].splitlines()[-1] == f"SIGTERM: stopped at step {state['step']} after {state['samples']:,} samples; saved {saved}"
    )
    assert second[1:] == ("", "")
    assert 24 <= state["step"] < 144


def test_a_resumed_run_ends_as_one_that_was_never_stopped(
    stopped: tuple[Path, list[tuple[int, str, str]]], digits: tuple[str, Path], torchrun: Any
) -> None:
    out, _ = stopped
    step = newest(out)["progress"]["step"]
    with (out / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"event": "train", "step": 100000}\n{"half a li')  # a crash after the checkpoint leaves such lines

    run = torchrun(2, "train.py", "--out", str(out))

    assert run.returncode == 0, run.stderr
    (end,) = records(out / "metrics.jsonl", "finished")
    (expected,) = records(digits[1] / "metrics.jsonl", "finished")[:1]
    assert (end["correct"], end["loss"], end["samples"]) == (expected["correct"], expected["loss"], expected["samples"])
    ours, theirs = newest(out), newest(digits[1])
    assert all(torch.equal(ours["model"][name], theirs["model"][name]) for name in theirs["model"])
    assert [record["step"] for record in records(out / "metrics.jsonl", "start")] == [0, step]
    assert max(record["step"] for record in records(out / "metrics.jsonl")) == 144
