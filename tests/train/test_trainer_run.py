"""train.py end to end, with real ranks over gloo: under torchrun, under distlaunch, and without a launcher."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.train.conftest import environment

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli
    from tests.train.conftest import Alone, Together
    from tests.train.ranks import Popen

pytestmark = pytest.mark.torch

WEIGHTS_DRIVER = """
import sys; sys.path.insert(0, {scripts!r})
import contextlib, pathlib, time, torch, train
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
def running():
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            yield task.joinpath("comm").read_text()
limit = time.monotonic() + 60
while any("gloo" in name for name in running()):  # the kernel may show one that was joined for a moment
    assert time.monotonic() < limit, "threads outlive the process group, and may abort the exit"
"""


def records(path: Path, event: str | None = None) -> list[dict[str, Any]]:
    """The metrics, each line parsed."""
    every = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [record for record in every if event in (None, record["event"])]


def newest(out: Path) -> dict[str, Any]:
    import torch

    state: dict[str, Any] = torch.load(max(out.glob("checkpoint-*.pt")), weights_only=True)
    return state


def losses(out: Path) -> list[float]:
    return [record["loss"] for record in records(out / "metrics.jsonl") if "loss" in record]


@pytest.fixture(scope="module")
def digits(torchrun: Alone, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Output and directory of a run on two ranks with the default flags, under torchrun itself."""
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


def test_the_table_has_the_numbers_of_the_metrics(digits: tuple[str, Path]) -> None:
    rows = [line.split() for line in digits[0].splitlines()[4:16]]
    train, test = (records(digits[1] / "metrics.jsonl", event) for event in ("train", "test"))

    for row, trained, tested in zip(rows, train, test, strict=True):
        load, work = trained["load_us_per_sample"], trained["train_us_per_sample"]
        assert row[3:] == [f"{trained['loss']:.4f}", f"{load:.1f}", f"{work:.1f}", f"{tested['accuracy']:.2%}"]
        assert trained["samples_per_s"] == pytest.approx(2e6 / (load + work), rel=1e-6), "of two ranks"
        assert len(trained["own_s_per_step"]) == 2
        assert max(trained["own_s_per_step"]) * 12 * 1e6 / 719 < load + work + max(load, work)
        assert (tested["total"], tested["correct"]) == (359, round(tested["accuracy"] * 359))
        assert tested["correct"] / 359 <= tested["accuracy5"] <= 1


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


def test_the_best_checkpoint_is_the_one_with_the_highest_accuracy(digits: tuple[str, Path]) -> None:
    best = json.loads((digits[1] / "best.json").read_text())

    tested = {record["step"]: record["accuracy"] for record in records(digits[1] / "metrics.jsonl", "test")}
    first = max(tested, key=lambda step: (tested[step], -step))
    assert best == {"checkpoint": f"checkpoint-{first:08d}.pt", "accuracy": tested[first]}


def test_the_same_command_again_finds_nothing_left_to_do(digits: tuple[str, Path], alone: Alone) -> None:
    stdout, out = digits
    run = alone("train.py", "--out", str(out))

    assert run.returncode == 0, run.stderr
    assert f"resumed from {out / 'checkpoint-00000144.pt'}: 12 epochs done" in run.stdout
    assert run.stdout.splitlines()[-1] == stdout.splitlines()[-1]


def test_what_a_crash_leaves_in_the_metrics_is_removed(digits: tuple[str, Path], alone: Alone, tmp_path: Path) -> None:
    """Lines of steps after the checkpoint, and half a line."""
    (tmp_path / "checkpoint-00000144.pt").write_bytes((digits[1] / "checkpoint-00000144.pt").read_bytes())
    written = [record for record in records(digits[1] / "metrics.jsonl") if record["event"] != "finished"][: 1 + 3 * 12]
    lines = [*map(json.dumps, written), '{"event": "train", "step": 100000}', '{"half a li']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))

    run = alone("train.py", "--out", str(tmp_path))

    assert run.returncode == 0, run.stderr
    assert records(tmp_path / "metrics.jsonl")[: len(written)] == written
    assert [record["event"] for record in records(tmp_path / "metrics.jsonl")[len(written) :]] == ["start", "finished"]
    assert [record["step"] for record in records(tmp_path / "metrics.jsonl", "start")] == [0, 144]


def test_one_process_and_two_of_any_launcher_have_the_same_result(
    alone: Alone, ranks: Together, distlaunch: Cli, tmp_path: Path
) -> None:
    """Under distlaunch to the last bit: it is the same program in the same environment."""
    flags = ("--epochs", "2", "--report", "none")
    one = alone("train.py", *flags, "--out", str(tmp_path / "one"))
    two = ranks(2, "train.py", *flags, "--out", str(tmp_path / "two"))
    launched = distlaunch(
        "local",
        "--nproc-per-node",
        "2",
        "train.py",
        *flags,
        "--out",
        str(tmp_path / "launched"),
        env={"CUDA_VISIBLE_DEVICES": ""},
    )

    assert [one.returncode, *two.codes, launched.exit_code] == [0] * 4, one.stderr + two.stderr + launched.stderr
    assert len(losses(tmp_path / "one")) == 5
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-3)
    assert losses(tmp_path / "launched") == losses(tmp_path / "two")


def test_all_ranks_hold_the_same_weights_from_start_to_end(ranks: Together, scripts: Path, tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(WEIGHTS_DRIVER.format(scripts=str(scripts)))

    done = ranks(2, driver, "--epochs", "1", "--batch-size", "100")

    assert done.codes == [0, 0], done.stderr


def test_resnet18_trains_on_synthetic_images(ranks: Together, tmp_path: Path) -> None:
    flags = (
        "--model resnet18 --data synthetic --image-shape 3x32x32 --samples 24 --classes 4 --batch-size 4 --log-every 2"
    )
    done = ranks(2, "train.py", *flags.split(), "--workers", "1", "--out", str(tmp_path))

    assert done.codes == [0, 0], done.stderr
    assert [record["samples"] for record in records(tmp_path / "metrics.jsonl", "train")] == [16, 24]
    assert newest(tmp_path)["model"]["bn1.num_batches_tracked"] == 3, "of steps alone, not of tests or of what warms up"


def test_on_a_terminal_a_bar_shows_how_far_the_epoch_is(popen: Popen, scripts: Path, tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    always = "trainer.bar.EVERY_S = 0"  # else by time, which depends on the host
    driver.write_text(
        f"import sys; sys.path.insert(0, {str(scripts)!r})\nimport train, trainer.bar\n{always}\ntrain.main()\n"
    )
    ours, theirs = pty.openpty()
    argv = [sys.executable, str(driver), "--epochs", "2"]
    process = popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment())
    os.close(theirs)
    shown = b""
    with (
        contextlib.suppress(OSError),
        open(ours, "rb", buffering=0) as terminal,
    ):  # EIO: no process has it open any more
        while read := terminal.read(4096):
            shown += read
    stdout, _ = process.communicate()

    assert process.returncode == 0
    drawn = re.findall(rb"\r    [12]  (#*)(\.*)  ([\d,]+) of 1,438 samples\x1b\[K", shown)
    bars = {int(text.replace(b",", b"")): (len(full), len(rest)) for full, rest, text in drawn}
    assert bars.keys() == set(range(0, 1438, 128))
    assert bars == {done: (round(30 * done / 1438), 30 - round(30 * done / 1438)) for done in bars}
    assert shown.endswith(b"\r\x1b[K"), "it is removed at the end"
    assert "#" not in stdout
