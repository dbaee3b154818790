"""Checkpoints in shards (--sync fsdp) that are interrupted, or that cannot be written."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.train.checkpoints import checkpoints, progress
from tests.train.held import held, losses, origin, stopped

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.world import World

    from tests.train.conftest import Start, Together

pytestmark = pytest.mark.torch


def test_shards_of_a_checkpoint_are_complete_or_not_there(
    script: Any, start: Start, ranks: Together, scripts: Path, tmp_path: Path
) -> None:
    """With --sync fsdp: a kill while shards are written, and a run that resumes from the previous ones."""
    argv = (
        "--sync",
        "fsdp",
        "--epochs",
        "1",
        "--log-every",
        "1",
        "--report",
        "none",
        "--checkpoint-steps",
        "4",
        "--keep",
        "9",
    )
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "out"
    assert ranks(2, script(), "--out", str(undisturbed), *argv).codes == [0, 0]
    driver = script("metadata", 2)
    driver.write_text(driver.read_text().replace("sys.exit(train", LAST_FILE + "sys.exit(train"))
    with start(2, driver, "--out", str(out), *argv) as running:
        held(running)
        running.kill()
    assert (out / "checkpoint-00000008.part").is_dir(), "not killed where it should have been"
    assert not (out / "checkpoint-00000008.part" / ".metadata").exists()
    (out / "checkpoint-00000008.part").rename(out / "checkpoint-00000007.part")  # the next run has no such step
    shutil.copytree(out / "checkpoint-00000007.part", out / "checkpoint-00000007")  # by a removal that was cut short
    for users in ("checkpoint-9", "checkpoint-copy"):
        (out / users).mkdir()
        (out / users / "model.bin").touch()

    done = ranks(2, script(), "--out", str(out), *argv)

    assert done.codes == [0, 0], done.stderr
    assert origin(done) == f"resumed from {out}/checkpoint-00000004: 0 epochs and 512 samples of the next done"
    assert losses(out) == losses(undisturbed)
    assert sorted(path.name for path in out.glob("checkpoint-*") if not (path / ".metadata").exists()) == [
        "checkpoint-9", "checkpoint-copy",
    ]  # fmt: skip


LAST_FILE = """
from torch.distributed.checkpoint import filesystem
writer = filesystem.FileSystemWriter
writer.finish = before("metadata", writer.finish)
"""


UNSCORED = """
loop.evaluate = before("unscored", loop.evaluate)
"""


def stopped_in_evaluation(start: Start, driver: Path, *argv: str) -> str:
    """Stop a run in its first evaluation; its last line."""
    driver.write_text(driver.read_text().replace("sys.exit(train", UNSCORED + "sys.exit(train"))
    with start(2, driver, *argv) as running:
        done = stopped(running)
    return done.outs[0].splitlines()[-1]


def test_a_step_that_is_saved_again_keeps_its_checkpoint_until_the_new_one_is_complete(
    script: Any, start: Start, ranks: Together, tmp_path: Path
) -> None:
    """As after a stop in the evaluation of an epoch, which the next start makes up for."""
    argv = ("--out", str(tmp_path), "--sync", "fsdp", "--epochs", "1", "--report", "none")
    saved = tmp_path / "checkpoint-00000012"
    resumed = f"resumed from {saved}: 1 epoch done"
    assert stopped_in_evaluation(start, script("unscored", 1), *argv).endswith(f"saved {saved}")

    driver = script("metadata", 1)
    driver.write_text(driver.read_text().replace("sys.exit(train", LAST_FILE + "sys.exit(train"))
    with start(2, driver, *argv) as running:
        held(running)
        running.kill()
    assert saved.with_suffix(".part").is_dir(), "not killed where it should have been"

    driver = script("replaced", 1)
    driver.write_text(driver.read_text().replace("sys.exit(train", REPLACED + "sys.exit(train"))
    with start(2, driver, *argv) as running:
        assert running.line(0, "resumed").rstrip() == resumed
        held(running)
        running.kill()
    assert not saved.exists(), "not killed where it should have been"

    done = ranks(2, script(), *argv)

    assert done.codes == [0, 0], done.stderr
    assert origin(done) == resumed
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == [saved.name]


REPLACED = """
import pathlib
pathlib.Path.rename = before("replaced", pathlib.Path.rename, lambda old, new: str(old) == f"{new}.part")
"""
"""Held when the former checkpoint of the step is gone, and the new one has not yet its name."""


def test_a_stop_before_any_step_saves_nothing_again(script: Any, start: Start, tmp_path: Path) -> None:
    """The checkpoint that the run resumed from holds it all, and a deadline could be too short for a new one."""
    argv = ("--out", str(tmp_path), "--epochs", "1", "--report", "none")
    saved = tmp_path / "checkpoint-00000012.pt"
    times = []
    for _ in range(2):
        assert stopped_in_evaluation(start, script("unscored", 1), *argv).endswith(f"saved {saved}")
        times.append((saved.stat().st_mtime_ns, saved.stat().st_ino))

    assert times[0] == times[1]


def test_damaged_shards_are_skipped_like_damaged_files(ranks: Together, tmp_path: Path) -> None:
    """Cut off, lost (or on another host's disk), or not to be read: the run resumes from older ones."""
    argv = ["--sync", "fsdp", "--epochs", "1", "--report", "none", "--checkpoint-steps", "3", "--keep", "9"]
    argv += ["--out", str(tmp_path)]
    assert ranks(2, "train.py", *argv).codes == [0, 0]
    cut, empty, gone, _ = (tmp_path / f"checkpoint-000000{step}" for step in ("12", "09", "06", "03"))
    with (cut / "__1_0.distcp").open("r+b") as shard:
        shard.truncate(shard.seek(0, 2) - 1)
    (empty / ".metadata").write_bytes(b"")
    (gone / "__0_0.distcp").unlink()

    done = ranks(2, "train.py", *argv)

    assert done.codes == [0, 0], done.stderr
    assert origin(done).startswith(f"resumed from {tmp_path}/checkpoint-00000003: ")
    assert done.errs[0].splitlines() == [
        f"--resume {path}: not a whole checkpoint{why}; going on from the one before it"
        for path, why in (
            (cut, " (__1_0.distcp is missing, or cut off)"),
            (empty, ""),
            (gone, " (__0_0.distcp is missing, or cut off)"),
        )
    ]


def test_what_another_rank_cannot_read_is_named(script: Any, ranks: Together, tmp_path: Path) -> None:
    argv = ["--sync", "fsdp", "--epochs", "1", "--report", "none", "--out", str(tmp_path)]
    assert ranks(2, "train.py", *argv).codes == [0, 0]
    driver = script()
    driver.write_text(driver.read_text().replace("sys.exit(train", OTHER_DISK + "sys.exit(train"))

    done = ranks(2, driver, *argv)

    assert 1 in done.codes
    assert "RuntimeError: rank 1: [Errno 2] No such file or directory" in done.stderr


OTHER_DISK = """
from torch.distributed.checkpoint import filesystem
if os.environ["RANK"] == "1":
    filesystem.FileSystemReader.read_data = lambda *args: open("/away")
"""


@pytest.mark.parametrize("place", ["shards", "about", "disk"])
def test_shards_that_cannot_be_written_are_reported_and_the_run_continues(
    script: Any, ranks: Together, tmp_path: Path, place: str
) -> None:
    driver = script()
    driver.write_text(driver.read_text().replace("sys.exit(train", NO_ROOM[place] + "sys.exit(train"))
    argv = ("--sync", "fsdp", "--epochs", "1", "--report", "none", "--checkpoint-steps", "4", "--keep", "9")

    done = ranks(2, driver, "--out", str(tmp_path / "out"), *argv)

    assert done.codes == [0, 0], done.stderr
    said = [line for line in done.stderr.splitlines() if "no checkpoint was saved" in line]
    assert len(said) == 1, done.stderr
    assert said[0].startswith("no checkpoint was saved: rank 0: no room for it (")
    assert said[0].endswith("the run continues")
    left = sorted(path.name for path in (tmp_path / "out").glob("checkpoint-*"))
    assert left == ["checkpoint-00000008", "checkpoint-00000012"], "what was written of the first takes up room"


NO_ROOM = {
    "shards": """
from torch.distributed.checkpoint import filesystem
def finish(*args, finish=filesystem.FileSystemWriter.finish, left=[True], **more):
    if left:
        left.pop()
        raise OSError("no room for it")
    return finish(*args, **more)
filesystem.FileSystemWriter.finish = finish
""",
    "about": """
from trainer import sharded
def sync(path, sync=sharded.sync_to_disk, left=[True]):
    if left:
        left.pop()
        raise OSError("no room for it")
    sync(path)
sharded.sync_to_disk = sync
""",
    "disk": """
from trainer import sharded
def remove(path, remove=sharded.remove):
    if "00000004" in path.name:
        raise OSError("no room for it")
    remove(path)
sharded.remove = remove
""",
}


def test_where_a_directory_cannot_be_renamed_shards_are_saved_and_resumed_from(
    script: Any, start: Start, ranks: Together, tmp_path: Path
) -> None:
    """As in an object store that is mounted as a file system. A kill comes while the second checkpoint is moved."""

    def driver(at: str = "", number: int = 0) -> Path:
        path: Path = script(at, number)
        path.write_text(path.read_text().replace("sys.exit(train", OBJECT_STORE + "sys.exit(train"))
        return path

    argv = ["--sync", "fsdp", "--epochs", "1", "--report", "none", "--checkpoint-steps", "4", "--keep", "9"]
    argv += ["--out", str(tmp_path)]
    with start(2, driver("rename", 6), *argv) as running:
        held(running)
        running.kill()
    second = tmp_path / "checkpoint-00000008"
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {
        "checkpoint-00000004", second.name, f"{second.name}.part"
    }, "not killed where it should have been"  # fmt: skip
    assert not (second / ".metadata").exists()

    done = ranks(2, driver(), *argv)

    assert done.codes == [0, 0], done.stderr
    assert done.stderr == ""
    assert origin(done).startswith(f"resumed from {second}: ")
    names = [f"checkpoint-{step:08d}" for step in (4, 8, 12)]
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == names
    assert origin(ranks(2, driver(), *argv)) == f"resumed from {tmp_path}/{names[-1]}: 1 epoch done"


OBJECT_STORE = """
import pathlib

def rename(path, to, rename=pathlib.Path.rename):
    if path.is_dir():
        raise OSError("no directory can be renamed")
    return rename(path, to)

pathlib.Path.rename = rename
"""


def test_shards_that_cannot_be_named_keep_no_run_from_starting(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They stay where they are: the disk may allow it later."""
    from trainer import saved

    def fails(*_: Any) -> None:
        raise OSError("it is read only")

    part = tmp_path / "checkpoint-00000012.part"
    part.mkdir()
    for name in (".metadata", "run.pt"):
        (part / name).write_bytes(b"x")
    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.rename", fails)
        patched.setattr("trainer.saved.os.replace", fails)

        assert checkpoints(world, tmp_path).restore() == progress()

    assert f"{part} is complete, but cannot be renamed, and is left out: it is read only" in capsys.readouterr().err
    saved.tidy(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000012"]
