"""Which checkpoint a run goes on from, and which it refuses."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainer.checkpoint import Checkpoints, Progress
    from trainer.world import World

pytestmark = pytest.mark.torch


def progress(**counts: int) -> Progress:
    from trainer.checkpoint import Progress

    return Progress(**counts)


def one() -> Progress:
    return progress(epoch=1, epoch_samples=0, step=12, samples=1438)


def two() -> Progress:
    return progress(epoch=2, epoch_samples=128, step=25, samples=3004)


@pytest.fixture
def world() -> Iterator[World]:
    from trainer.world import process_group

    with process_group() as alone:
        yield alone


def of(world: World, out: Path | None, model: Any, *argv: str, **parts: Any) -> Checkpoints:
    """The checkpoints of a run."""
    from trainer.checkpoint import Checkpoints
    from trainer.flags import parse

    where = () if out is None else ("--out", str(out))
    return Checkpoints(parse([*where, *argv], 1), world, {"model": model, **parts})


def checkpoints(world: World, out: Path, *argv: str, weight: float = 0.0) -> Checkpoints:
    """Those of a model with a single number in it."""
    import torch

    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, weight)
    return of(world, out, model, *argv, optimizer=torch.optim.SGD(model.parameters(), momentum=0.9))


def weight(run: Checkpoints) -> float:
    return float(next(run.parts["model"].parameters()).item())


def read(path: Path | None) -> dict[str, Any]:
    import torch

    assert path is not None
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


@pytest.fixture
def out(world: World, tmp_path: Path) -> Path:
    """A directory with two checkpoints."""
    for counts, value in ((one(), 1.0), (two(), 2.0)):
        run = checkpoints(world, tmp_path, weight=value)
        run.save(counts)
        assert run.finish() is not None
    return tmp_path


def test_auto_takes_the_newest(world: World, out: Path) -> None:
    run = checkpoints(world, out)

    assert run.restore() == two()
    assert weight(run) == 2.0


def test_the_optimizer_goes_on_with_its_momentum(world: World, tmp_path: Path) -> None:
    run = checkpoints(world, tmp_path, weight=1.0)
    parameter = next(run.parts["model"].parameters())
    (3 * parameter).sum().backward()
    run.parts["optimizer"].step()
    run.save(one())
    run.finish()
    again = checkpoints(world, tmp_path)

    again.restore()

    (kept,) = again.parts["optimizer"].state.values()
    assert kept["momentum_buffer"].item() == 3.0


def test_a_half_written_file_is_never_taken(world: World, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (out / "checkpoint-00000099.pt.part").write_bytes(b"half")
    whole = (out / "checkpoint-00000025.pt").read_bytes()
    (out / "checkpoint-00000025.pt").write_bytes(whole[: len(whole) // 2])
    run = checkpoints(world, out)

    assert run.restore() == one()
    assert weight(run) == 1.0
    assert "checkpoint-00000025.pt: not a whole checkpoint; going on from the one before it" in capsys.readouterr().err
    assert not list(out.glob("*.part"))


def test_never_starts_anew(world: World, out: Path) -> None:
    (out / "best.json").write_text("{}")
    run = checkpoints(world, out, "--resume", "never", weight=5.0)

    assert run.restore() == progress()
    assert weight(run) == 5.0
    assert not list(out.iterdir())


def test_a_named_checkpoint_is_taken(world: World, out: Path) -> None:
    run = checkpoints(world, out, "--resume", str(out / "checkpoint-00000012.pt"))

    assert run.restore() == one()
    assert weight(run) == 1.0


def test_random_numbers_go_on_where_they_were(world: World, tmp_path: Path) -> None:
    """Torch's, Python's and numpy's."""
    import numpy as np
    import torch

    def draw() -> list[float]:
        return [torch.rand(1).item(), random.random(), np.random.rand(), np.random.randn()]

    draw()  # a normal number is kept for the next time
    run = checkpoints(world, tmp_path)
    run.save(one())
    run.finish()
    expected = draw()

    assert draw() != expected
    checkpoints(world, tmp_path).restore()
    assert draw() == expected


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model", "resnet18"], "has model 'small', this run 'resnet18'"),
        (["--seed", "5"], "has seed 0, this run 5"),
        (["--sync", "fsdp"], "was saved as one file, --sync fsdp saves in shards: choose another --out"),
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


def test_without_a_directory_nothing_is_saved(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    run = of(world, None, torch.nn.Linear(1, 1))

    assert run.restore() == progress()
    assert run.save(one()) is None
    assert run.finish() is None
    assert not list(tmp_path.iterdir())


def test_the_last_k_and_the_best_are_kept(world: World, tmp_path: Path) -> None:
    run = checkpoints(world, tmp_path, "--keep", "2")
    for step, accuracy in enumerate((0.5, 0.9, 0.7, 0.8, 0.6), 1):
        run.save(progress(epoch=step, step=step), accuracy)
    run.finish()

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best.json", "checkpoint-00000002.pt", "checkpoint-00000004.pt", "checkpoint-00000005.pt",
    ]  # fmt: skip
    best = {"checkpoint": "checkpoint-00000002.pt", "accuracy": 0.9}
    assert json.loads((tmp_path / "best.json").read_text()) == best

    again = checkpoints(world, tmp_path, "--keep", "1")
    again.restore()
    again.save(progress(epoch=6, step=6), 0.85)
    again.finish()

    assert json.loads((tmp_path / "best.json").read_text()) == best, "of the run that this one goes on from"
    names = sorted(path.name for path in tmp_path.glob("*.pt"))
    assert names == ["checkpoint-00000002.pt", "checkpoint-00000006.pt"]


def test_a_save_is_a_copy_of_that_moment(world: World, tmp_path: Path) -> None:
    """The weights change as soon as they may, as in training, while the file is still being written."""
    import torch

    model = torch.nn.Linear(500, 500)
    torch.nn.init.constant_(model.weight, 1.0)
    run = of(world, tmp_path, model)
    for step in range(1, 4):
        path = run.save(progress(step=step))
        run.copied()
        torch.nn.init.constant_(model.weight, float(step + 1))
    run.finish()

    assert read(path)["model"]["weight"].unique().tolist() == [3.0]
    assert read(tmp_path / "checkpoint-00000002.pt")["model"]["weight"].unique().tolist() == [2.0]


def test_a_full_disk_is_said_and_the_last_good_checkpoint_stays(
    small_disk: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    good = checkpoints(world, small_disk, weight=1.0)
    good.save(one())
    good.finish()
    big = of(world, small_disk, torch.nn.Linear(1000, 1000))

    big.save(two())
    big.finish()

    said = capsys.readouterr().err
    assert "no checkpoint was saved" in said
    assert "MB free" in said
    assert [path.name for path in small_disk.iterdir()] == ["checkpoint-00000012.pt"]
    again = checkpoints(world, small_disk)
    assert again.restore() == one()
    assert weight(again) == 1.0


def test_where_no_file_can_be_made_the_reason_is_told_and_no_other(tmp_path: Path) -> None:
    from trainer.saved import write_whole

    with pytest.raises(RuntimeError, match=r"Parent directory .*/away does not exist"):
        write_whole({"step": 1}, tmp_path / "away/checkpoint-00000012.pt")


def test_a_deadline_ends_the_wait_for_a_disk_that_does_not_answer(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    monkeypatch.setattr("trainer.checkpoint.write_whole", lambda *_: answer.wait())
    run = checkpoints(world, tmp_path)
    run.save(one())

    try:
        assert run.finish(deadline=time.time() + 1.05) is None
        assert run.late
        assert "was not complete at the deadline" in capsys.readouterr().err
        assert run.save(two(), deadline=time.time()) is None
    finally:
        answer.set()
    assert run.finish() == tmp_path / "checkpoint-00000012.pt"
    assert not run.late


def test_weights_wait_for_the_copy_that_a_checkpoint_takes_of_them(world: World, tmp_path: Path) -> None:
    import torch

    run = checkpoints(world, tmp_path, weight=1.0)
    free = threading.Event()
    run._writer.submit(free.wait)  # the copying cannot begin yet

    def change() -> None:
        run.copied()
        torch.nn.init.constant_(next(run.parts["model"].parameters()), 9.0)

    run.save(one())
    copying: Any = run._copying
    changer = threading.Thread(target=change)
    changer.start()
    wait_until("the change to wait for the copy", lambda: copying._waiters, limit_s=60)
    still = weight(run)
    free.set()
    changer.join()
    run.finish()

    assert (still, weight(run)) == (1.0, 9.0)
    assert not run.copied(), "nothing is open any more"
    again = checkpoints(world, tmp_path)
    again.restore()
    assert weight(again) == 1.0


def test_what_a_forward_pass_changes_is_copied_at_once(world: World, tmp_path: Path) -> None:
    import torch

    norm = torch.nn.BatchNorm1d(1)
    run = of(world, tmp_path, norm)
    free = threading.Event()
    run._writer.submit(free.wait)

    path = run.save(one())
    norm(torch.full((4, 1), 100.0))
    free.set()
    run.finish()

    assert read(path)["model"]["running_mean"].item() == 0.0
