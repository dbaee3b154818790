"""Which checkpoint a run resumes from, and which it refuses."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest

from tests.train.checkpoints import checkpoints, one, progress, two, weight

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.world import World

pytestmark = pytest.mark.torch


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


def test_the_optimizer_resumes_with_its_momentum(world: World, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("content", [b"x", b"\x80", b"\0" * 5000])
def test_a_file_of_any_damage_is_skipped(
    world: World, out: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (out / "checkpoint-00000025.pt").write_bytes(content)

    assert checkpoints(world, out).restore() == one()
    assert "checkpoint-00000025.pt: not a" in capsys.readouterr().err


def test_checkpoints_that_cannot_be_read_now_keep_their_names(world: World, out: Path) -> None:
    """As their disk may be out of reach for a moment."""
    names = sorted(path.name for path in out.glob("checkpoint-*"))
    for name in names:
        (out / name).write_bytes(b"x")

    checkpoints(world, out).restore()

    assert sorted(path.name for path in out.glob("*checkpoint-*")) == names


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


def test_a_run_that_goes_back_keeps_what_it_saves_and_the_best(
    world: World, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (out / "best.json").write_text('{"checkpoint": "checkpoint-00000012.pt", "accuracy": 0.9}')
    (out / "checkpoint-best.pt").write_bytes((out / "checkpoint-00000012.pt").read_bytes())
    run = checkpoints(world, out, "--resume", str(out / "checkpoint-00000012.pt"), "--keep", "1")
    run.restore()

    for step in (13, 14):
        run.save(progress(epoch=1, epoch_samples=1, step=step, samples=1500), accuracy=0.5)
        assert run.finish() == out / f"checkpoint-000000{step}.pt"

    assert sorted(path.name for path in out.iterdir()) == [
        "best.json", "checkpoint-00000012.pt", "checkpoint-00000014.pt", "checkpoint-best.pt",
        "left-checkpoint-00000025.pt",
    ]  # fmt: skip
    assert "now left-checkpoint-00000025.pt" in capsys.readouterr().err
    assert checkpoints(world, out).restore().step == 14


def test_a_run_that_goes_back_forgets_a_best_of_later_steps(world: World, out: Path) -> None:
    """Its own step of that number is another checkpoint."""
    (out / "best.json").write_text('{"checkpoint": "checkpoint-00000025.pt", "accuracy": 0.9}')
    run = checkpoints(world, out, "--resume", str(out / "checkpoint-00000012.pt"), "--keep", "1")
    run.restore()

    for step, accuracy in ((24, 0.5), (25, 0.4)):
        run.save(progress(epoch=1, epoch_samples=1, step=step, samples=1500), accuracy)
        run.finish()

    assert json.loads((out / "best.json").read_text()) == {"checkpoint": "checkpoint-00000024.pt", "accuracy": 0.5}
    assert (out / "checkpoint-00000024.pt").exists()


@pytest.mark.parametrize("name", ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT", "DISTLAUNCH_ATTEMPT"])
def test_a_run_that_is_started_again_goes_on_from_its_own(
    world: World, out: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")

    assert checkpoints(world, out, "--resume", "never").restore() == two()
    assert checkpoints(world, out, "--resume", str(out / "checkpoint-00000012.pt")).restore() == two()

    monkeypatch.setenv(name, "0")
    assert checkpoints(world, out, "--resume", str(out / "checkpoint-00000012.pt")).restore() == one()


@pytest.mark.parametrize("name", ["SLURM_RESTART_COUNT", "DISTLAUNCH_ROUND"])
def test_a_run_that_is_started_again_needs_no_file_that_it_has_removed(
    world: World, out: Path, monkeypatch: pytest.MonkeyPatch, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `--resume` names is one of the checkpoints of which `--keep` leaves the last few."""
    flags = ("--resume", str(out / "checkpoint-00000012.pt"), "--keep", "1")
    first = checkpoints(world, out, *flags)
    first.restore()
    for step in (13, 14):
        first.save(progress(epoch=1, epoch_samples=1, step=step, samples=1500), accuracy=0.5 + step / 100)
        first.finish()
    assert [path.name for path in out.glob("checkpoint-*")] == ["checkpoint-00000014.pt"]
    monkeypatch.setenv(name, "1")

    assert checkpoints(world, out, *flags).restore().step == 14
    assert f"going on from {out}/checkpoint-00000014.pt" in capsys.readouterr().err

    (out / "checkpoint-00000014.pt").rename(out / "checkpoint-00000011.pt")  # saved before the one that is named
    with pytest.raises(SystemExit):
        checkpoints(world, out, *flags).restore()
    assert f"--resume {flags[1]}: No such file" in capsys.readouterr().err


def test_a_file_that_is_gone_and_names_no_step_is_replaced_by_what_the_run_itself_has_saved_alone(
    world: World, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoints of an earlier run may be of another course."""
    file = out / "best.pt"
    (out / "checkpoint-00000025.pt").rename(file)
    flags = ("--resume", str(file))
    monkeypatch.setenv("DISTLAUNCH_RUN_ID", "this")
    first = checkpoints(world, out, *flags)
    assert first.restore() == two()
    kept = file.rename(out / "away.pt")  # as if its disk were not mounted on the next node
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")

    with pytest.raises(SystemExit):
        checkpoints(world, out, *flags).restore()
    assert f"--resume {file}: No such file" in capsys.readouterr().err

    first.save(progress(epoch=2, epoch_samples=256, step=26, samples=3132))
    first.finish()
    assert checkpoints(world, out, *flags).restore().step == 26
    assert f"going on from {out}/checkpoint-00000026.pt" in capsys.readouterr().err

    monkeypatch.delenv("DISTLAUNCH_RUN_ID")
    with pytest.raises(SystemExit):
        checkpoints(world, out, *flags).restore()
    kept.rename(file)
    assert checkpoints(world, out, *flags).restore().step == 26


def test_a_run_whose_nodes_have_met_again_goes_on_from_its_own_alone(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that joins is no restart. What another run has left counts for the first start only."""
    first, others = str(tmp_path / "checkpoint-00000012.pt"), ("DISTLAUNCH_RUN_ID", "other")
    monkeypatch.setenv("DISTLAUNCH_RUN_ID", "this")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    monkeypatch.setenv("DISTLAUNCH_ROUND", "1")
    for counts in (one(), two()):
        run = checkpoints(world, tmp_path)
        run.save(counts)
        run.finish()

    assert checkpoints(world, tmp_path, "--resume", "never").restore() == two()
    assert checkpoints(world, tmp_path, "--resume", first).restore() == two()

    monkeypatch.setenv(*others)
    assert checkpoints(world, tmp_path, "--resume", first).restore() == one()
    assert checkpoints(world, tmp_path, "--resume", "never").restore() == progress()
    assert not list(tmp_path.glob("checkpoint-*"))


def test_random_numbers_continue_where_they_were(world: World, tmp_path: Path) -> None:
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
def test_an_unusable_checkpoint_is_refused(
    world: World, out: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        checkpoints(world, out, *argv).restore()

    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
