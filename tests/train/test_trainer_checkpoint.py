"""Which checkpoint a run goes on from, and which it refuses."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from trainer.checkpoint import Checkpoints, Progress
from trainer.flags import parse
from trainer.world import World, process_group

if TYPE_CHECKING:
    from pathlib import Path

ONE = Progress(epoch=1, epoch_samples=0, step=12, samples=1438)
TWO = Progress(epoch=2, epoch_samples=128, step=25, samples=3004)


@pytest.fixture
def world() -> Any:
    with process_group() as one:
        yield one


def checkpoints(world: World, out: Path, *argv: str, weight: float = 0.0) -> Checkpoints:
    """Those of a model with a single number in it."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, weight)
    parts = {"model": model, "optimizer": torch.optim.SGD(model.parameters())}
    return Checkpoints(parse(["--out", str(out), *argv], 1), world, parts)


def weight(of: Checkpoints) -> float:
    return float(next(of.parts["model"].parameters()).item())


@pytest.fixture
def out(world: World, tmp_path: Path) -> Path:
    """A folder with two checkpoints."""
    for progress, value in ((ONE, 1.0), (TWO, 2.0)):
        run = checkpoints(world, tmp_path, weight=value)
        run.save(progress)
        assert run.finish() is not None
    return tmp_path


def test_auto_takes_the_newest(world: World, out: Path) -> None:
    run = checkpoints(world, out)

    assert run.restore() == TWO
    assert weight(run) == 2.0


def test_a_half_written_file_is_never_taken(world: World, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (out / "checkpoint-00000099.pt.part").write_bytes(b"half")
    whole = (out / "checkpoint-00000025.pt").read_bytes()
    (out / "checkpoint-00000025.pt").write_bytes(whole[: len(whole) // 2])
    run = checkpoints(world, out)

    assert run.restore() == ONE
    assert weight(run) == 1.0
    assert "checkpoint-00000025.pt: not a whole checkpoint; going on from the one before it" in capsys.readouterr().err
    assert not list(out.glob("*.part"))


def test_never_starts_anew(world: World, out: Path) -> None:
    assert checkpoints(world, out, "--resume", "never").restore() == Progress()
    assert not list(out.glob("checkpoint-*"))


def test_a_named_checkpoint_is_taken(world: World, out: Path) -> None:
    assert checkpoints(world, out, "--resume", str(out / "checkpoint-00000012.pt")).restore() == ONE


def test_random_numbers_go_on_where_they_were(world: World, tmp_path: Path) -> None:
    run = checkpoints(world, tmp_path)
    run.save(ONE)
    run.finish()
    expected = torch.rand(3)
    torch.manual_seed(99)

    checkpoints(world, tmp_path).restore()

    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model", "resnet18"], "has model 'small', this run 'resnet18'"),
        (["--seed", "5"], "has seed 0, this run 5"),
        (["--resume", "/nowhere.pt"], "--resume /nowhere.pt: No such file"),
        (["--resume", __file__], "not a whole checkpoint"),
    ],
)
def test_a_checkpoint_of_no_use_is_refused(
    world: World, out: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        checkpoints(world, out, *argv).restore()

    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_without_a_folder_nothing_is_saved(world: World) -> None:
    assert dist.is_initialized()
    model = torch.nn.Linear(1, 1)
    assert Checkpoints(parse([], 1), world, {"model": model}).save(ONE) is None


def test_the_last_k_and_the_best_are_kept(world: World, tmp_path: Path) -> None:
    run = checkpoints(world, tmp_path, "--keep", "2")
    for step, accuracy in enumerate((0.5, 0.9, 0.7, 0.8, 0.6), 1):
        run.save(Progress(epoch=step, step=step), accuracy)
    run.finish()

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best.json", "checkpoint-00000002.pt", "checkpoint-00000004.pt", "checkpoint-00000005.pt",
    ]  # fmt: skip
    assert json.loads((tmp_path / "best.json").read_text()) == {"checkpoint": "checkpoint-00000002.pt", "accuracy": 0.9}


def test_a_save_is_a_copy_of_that_moment(world: World, tmp_path: Path) -> None:
    """The weights change as soon as they may, as in training, while the file is still being written."""
    model = torch.nn.Linear(500, 500)
    torch.nn.init.constant_(model.weight, 1.0)
    run = Checkpoints(parse(["--out", str(tmp_path)], 1), world, {"model": model})
    for step in range(1, 4):
        path = run.save(Progress(step=step))
        run.copied()
        torch.nn.init.constant_(model.weight, float(step + 1))
    run.finish()

    assert path is not None
    saved = torch.load(path, weights_only=True)["model"]["weight"]
    assert saved.unique().tolist() == [3.0]


def test_a_full_disk_is_said_and_the_last_good_checkpoint_stays(
    small_disk: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    good = checkpoints(world, small_disk, weight=1.0)
    good.save(ONE)
    good.finish()
    big = Checkpoints(parse(["--out", str(small_disk)], 1), world, {"model": torch.nn.Linear(1000, 1000)})

    big.save(TWO)
    big.finish()

    said = capsys.readouterr().err
    assert "no checkpoint was saved" in said
    assert "MB free" in said
    assert [path.name for path in small_disk.iterdir()] == ["checkpoint-00000012.pt"]
    again = checkpoints(world, small_disk)
    assert again.restore() == ONE
    assert weight(again) == 1.0


def test_a_deadline_ends_the_wait_for_a_disk_that_does_not_answer(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    monkeypatch.setattr("trainer.checkpoint.write_whole", lambda *_: answer.wait(60))
    run = checkpoints(world, tmp_path)
    run.save(ONE)

    try:
        assert run.finish(deadline=time.time() + 1.05) is None
        assert run.late
        assert "was not complete at the deadline" in capsys.readouterr().err
        assert run.save(TWO, deadline=time.time()) is None
    finally:
        answer.set()


def test_weights_wait_for_the_copy_that_a_checkpoint_takes_of_them(world: World, tmp_path: Path) -> None:
    run = checkpoints(world, tmp_path, weight=1.0)
    free = threading.Event()
    run._writer.submit(free.wait, 60)  # the copying cannot begin yet

    run.save(ONE)
    saver = threading.Thread(target=lambda: (run.copied(), torch.nn.init.constant_(next(run.parts["model"].parameters()), 9.0)))
    saver.start()
    still = weight(run)
    free.set()
    saver.join(60)
    run.finish()

    assert (still, weight(run)) == (1.0, 9.0)
    assert not run.copied(), "nothing is open any more"
    again = checkpoints(world, tmp_path)
    again.restore()
    assert weight(again) == 1.0


def test_what_a_forward_pass_changes_is_copied_at_once(world: World, tmp_path: Path) -> None:
    norm = torch.nn.BatchNorm1d(1)
    run = Checkpoints(parse(["--out", str(tmp_path)], 1), world, {"model": norm})
    free = threading.Event()
    run._writer.submit(free.wait, 60)

    path = run.save(ONE)
    norm(torch.full((4, 1), 100.0))
    free.set()
    run.finish()

    assert path is not None
    assert torch.load(path, weights_only=True)["model"]["running_mean"].item() == 0.0
