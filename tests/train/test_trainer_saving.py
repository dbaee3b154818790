"""How checkpoints are saved: when they are copied, which are kept, and what happens if the disk fails."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from testbed.waiting import wait_until
from tests.train.checkpoints import checkpoints, of, one, progress, read, two, weight

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.world import World

pytestmark = pytest.mark.torch


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

    assert json.loads((tmp_path / "best.json").read_text()) == best, "of the run that this one resumes"
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


def test_a_full_disk_is_reported_and_the_last_good_checkpoint_stays(
    small_disk: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    good = checkpoints(world, small_disk, weight=1.0)
    good.save(one())
    good.finish()
    big = of(world, small_disk, torch.nn.Linear(1500, 1500))

    big.save(two())
    big.finish()

    said = capsys.readouterr().err
    assert "no checkpoint was saved" in said
    assert "MB free" in said
    assert [path.name for path in small_disk.iterdir()] == ["checkpoint-00000012.pt"]
    again = checkpoints(world, small_disk)
    assert again.restore() == one()
    assert weight(again) == 1.0


def test_a_best_that_cannot_be_noted_keeps_no_checkpoint_from_being_saved(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = checkpoints(world, tmp_path, "--keep", "1")
    run.save(progress(step=1), 0.5)
    run.finish()
    (tmp_path / "best.json.part").mkdir()  # nothing can be written there

    for step in (2, 3):
        run.save(progress(step=step), 0.5 + step / 10)
        assert run.finish() == tmp_path / f"checkpoint-0000000{step}.pt"

    said = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in said] == [
        f"{tmp_path}/checkpoint-0000000{step}.pt was saved" for step in (2, 3)
    ]
    names = sorted(path.name for path in tmp_path.glob("*.pt"))
    assert names == ["checkpoint-00000001.pt", "checkpoint-00000003.pt"], "the best that is noted, and the last"


def test_where_no_file_can_be_made_the_real_reason_is_reported(tmp_path: Path) -> None:
    from trainer.saved import write_whole

    with pytest.raises(RuntimeError, match=r"Parent directory .*/away does not exist"):
        write_whole({"step": 1}, tmp_path / "away/checkpoint-00000012.pt")


def test_a_directory_that_has_gone_is_reported_and_the_run_continues(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = checkpoints(world, tmp_path / "out")
    run.restore()
    (tmp_path / "out").rmdir()

    run.save(one())

    assert run.finish() is None
    said = capsys.readouterr().err
    assert said.startswith("no checkpoint was saved: Parent directory ")
    assert said.endswith("; the run continues\n")
    (tmp_path / "out").mkdir()
    run.save(two())
    assert run.finish() == tmp_path / "out/checkpoint-00000025.pt"


def test_a_deadline_ends_the_wait_for_a_disk_that_does_not_respond(
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
    assert not run.copied(), "no copy is pending any more"
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


def test_what_a_kill_leaves_of_a_removed_directory_is_removed_at_the_next_start(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the removal had come to: shards are large."""
    from trainer import saved

    old = tmp_path / "checkpoint-00000012"

    def killed(path: Path, **_: Any) -> None:
        if path.exists():
            (path / "run.pt").unlink()
            raise KeyboardInterrupt

    old.mkdir()
    for name in (".metadata", "run.pt", "__0_0.distcp"):
        (old / name).write_bytes(b"x")
    with monkeypatch.context() as patched:
        patched.setattr("trainer.saved.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            saved.remove(old)
    assert list(tmp_path.rglob("*.distcp")), "nothing was left"

    for _ in range(2):
        checkpoints(world, tmp_path).restore()

    assert not list(tmp_path.iterdir())
