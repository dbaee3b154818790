"""Batches of images: which samples they hold, on which rank, and how many threads load them."""

from __future__ import annotations

import os
import shutil
import weakref
from typing import TYPE_CHECKING

import pytest

from tests.train.photographs import SAMPLES, batches, rebuilt, spelt_out

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.loader import Batches
    from trainer.world import World

    from tests.train.conftest import Alone, Together

pytestmark = pytest.mark.torch


def test_an_epoch_and_the_held_out_tenth_are_all_samples_once(photographs: Path) -> None:
    ours = batches("--data", spelt_out(photographs), "--workers", "2")
    names = [ours.data.train.name(number) for batch in ours.train(0) for number in batch.numbers]
    names += [ours.data.test.name(number) for batch in ours.test() for number in batch.numbers]
    tested = sum(batch.samples for batch in ours.test())
    ours.close()

    assert len(names) == SAMPLES
    assert len(set(names)) == SAMPLES
    assert tested == 6


def test_ranks_with_unequal_shares_count_by_their_samples(photographs: Path) -> None:
    """54 samples in steps of 16: what is left, less than two for each of 4 ranks, joins the last step."""
    every = [
        batches("--data", spelt_out(photographs), "--batch-size", "4", "--workers", "0", rank=rank, count=4)
        for rank in range(4)
    ]

    *_, last = zip(*(ours.train(0) for ours in every), strict=True)

    assert [(batch.start, batch.end, batch.samples) for batch in last] == [(32, 54, share) for share in (6, 6, 5, 5)]
    assert [batch.weight for batch in last] == pytest.approx([share * 4 / 22 for share in (6, 6, 5, 5)])


def test_a_rank_without_samples_takes_part_in_every_step(photographs: Path) -> None:
    """As when an epoch continues with more ranks than it has samples left."""
    every = [
        batches("--data", spelt_out(photographs), "--batch-size", "4", "--workers", "0", rank=rank, count=4)
        for rank in range(4)
    ]

    ((first, second, third, fourth),) = zip(*(ours.train(0, start=52) for ours in every), strict=True)

    assert [batch.weight for batch in (first, second, third, fourth)] == [2, 2, 0, 0]
    assert [batch.samples for batch in (first, second, third, fourth)] == [1, 1, 0, 0]
    assert [len(batch.images) for batch in (first, second, third, fourth)] == [2, 2, 2, 2], "too few for BatchNorm"
    assert third.numbers.tolist() == fourth.numbers.tolist() == first.numbers.tolist() != second.numbers.tolist()


@pytest.mark.parametrize("workers", ["0", "1", "3"])
def test_a_batch_is_the_same_however_many_threads_load_it_and_wherever_the_epoch_began(
    photographs: Path, workers: str
) -> None:
    import torch

    one, other = (
        batches("--data", spelt_out(photographs), "--workers", "0"),
        batches("--data", spelt_out(photographs), "--workers", workers),
    )

    whole, later = list(one.train(2)), list(other.train(2, start=whole_end(one, 3)))
    other.close()

    assert len(later) == len(whole) - 3
    for ours, theirs in zip(later, whole[3:], strict=True):
        assert torch.equal(ours.images, theirs.images)
        assert torch.equal(ours.labels, theirs.labels)


def middles(photographs: Path, data: str, *flags: str) -> list[bool]:
    """For each training sample of an epoch, whether it is an image as the test set has it."""
    ours = batches("--data", data, "--test-data", spelt_out(photographs), "--workers", "0", *flags)
    tested = {image.numpy().tobytes() for batch in ours.test() for image in batch.images}
    return [image.numpy().tobytes() in tested for batch in ours.train(0) for image in batch.images]


@pytest.mark.parametrize(
    ("data", "reader", "samples"),
    [("{}", "", SAMPLES), ("pipe:cat {}", "--reader webdataset --samples 32 --classes 4", 32)],
)
def test_without_augmentation_the_middle_of_an_image_is_taken(
    photographs: Path, data: str, reader: str, samples: int
) -> None:
    images = data.format(spelt_out(photographs))

    plain, augmented = (middles(photographs, images, *reader.split(), *more) for more in (("--no-augment",), ()))

    assert plain == [True] * samples
    assert augmented == [False] * samples


def whole_end(ours: Batches, steps: int) -> int:
    return list(ours.order.spans())[steps - 1][1]


def test_a_damaged_image_is_skipped_counted_and_named(
    photographs_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainer.errors import TrainingError
    from trainer.sources import EncodedImages

    rebuilt(photographs_copy / "data-000000.tar", lambda name, blob: blob[:100] if name == "00000007.jpg" else blob)
    argv = ["--data", spelt_out(photographs_copy), "--test-data", spelt_out(photographs_copy), "--workers", "2"]
    ours = batches(*argv)

    taken = [batch for epoch in range(2) for batch in ours.train(epoch)]
    ours.close()

    assert sum(batch.samples for batch in taken) == 2 * (SAMPLES - 1)
    assert all(len(batch.images) == len(batch.labels) == len(batch.numbers) == batch.samples for batch in taken)
    assert isinstance(ours.data.train, EncodedImages)
    assert ours.data.train.damaged == {7}
    said = capsys.readouterr().err
    assert said.count("skipped") == 1
    assert "data-000000.tar: 00000007.jpg" in said
    with pytest.raises(TrainingError, match=r"00000007\.jpg: .*\(--strict\)"):
        list(batches(*argv, "--strict").train(0))


def cut(directory: Path, *numbers: int) -> list[str]:
    """Cut these samples off after 100 bytes; returns the flags to train and test on all."""
    names = {f"{number:08d}.jpg" for number in numbers}
    for shard in directory.glob("*.tar"):
        rebuilt(shard, lambda name, blob: blob[:100] if name in names else blob)
    return ["--data", spelt_out(directory), "--test-data", spelt_out(directory), "--workers", "0"]


def test_a_batch_whose_samples_are_all_damaged_takes_part_and_does_not_count(photographs_copy: Path) -> None:
    """The last test sample is a batch of its own, and the first stands in where a rank's last batch is empty."""
    flags = cut(photographs_copy, 0, 59)

    alone = list(batches(*flags, "--batch-size", "59").test())
    without = list(batches(*flags, "--batch-size", "2", rank=6, count=7).test())

    assert [batch.samples for batch in alone] == [58, 0]
    for last in (alone[-1], without[-1]):
        assert (last.samples, last.labels.tolist(), bool(last.images.any())) == (0, [0], False)


def test_a_run_goes_on_after_steps_whose_samples_are_all_damaged(photographs_copy: Path, alone: Alone) -> None:
    flags = [*cut(photographs_copy, 7, 59), "--model", "small", "--image-shape", "3x24x32", "--batch-size", "1"]

    run = alone("train.py", *flags, "--epochs", "1", "--log-every", "1", "--report", "none")

    assert run.returncode == 0, run.stderr
    assert "4 damaged samples skipped so far" in run.stdout, "of two sets of the same files"
    assert "of 58)" in run.stdout


def test_a_damaged_sample_that_two_ranks_have_met_counts_once(photographs_copy: Path, ranks: Together) -> None:
    flags = [*cut(photographs_copy, 7, 59), "--model", "small", "--image-shape", "3x24x32", "--batch-size", "8"]

    run = ranks(2, "train.py", *flags, "--epochs", "6", "--report", "none")

    assert run.codes == [0, 0], run.stderr
    counts = [line for line in run.stdout.splitlines() if "damaged" in line]
    assert counts[-1] == "4 damaged samples skipped so far", "of two sets of the same files"


def test_damaged_samples_of_a_test_set_that_is_held_out_are_counted(photographs_copy: Path, alone: Alone) -> None:
    held_out = batches("--data", spelt_out(photographs_copy), "--workers", "0").data.test.name(0)
    flags = [*cut(photographs_copy, int(held_out[-12:-4]))[:2], "--model", "small", "--image-shape", "3x24x32"]

    run = alone("train.py", *flags, "--batch-size", "8", "--epochs", "2", "--report", "none")

    assert run.returncode == 0, run.stderr
    assert run.stdout.count("1 damaged sample skipped so far") == 2
    assert "of 5)" in run.stdout


def test_norms_over_batches_take_what_damage_leaves_of_a_batch(photographs_copy: Path, alone: Alone) -> None:
    """One image of two, or none."""
    flags = cut(photographs_copy, *range(12), *range(20, 32))
    flags += ["--model", "resnet18", "--image-shape", "3x32x32", "--batch-size", "2"]

    run = alone("train.py", *flags, "--epochs", "1", "--report", "none")

    assert run.returncode == 0, run.stderr
    assert "48 damaged samples skipped so far" in run.stdout


def test_damage_without_an_end_is_an_error(photographs_copy: Path, world: World) -> None:
    import torch
    from trainer import loop
    from trainer.errors import TrainingError

    flags = cut(photographs_copy, *range(SAMPLES))
    few = batches(*flags, "--batch-size", "59")

    with pytest.raises(TrainingError, match=r"all 4 samples of a batch are damaged, .*\.tar: 000000"):
        list(batches(*flags, "--batch-size", "4").train(0))
    with pytest.raises(TrainingError, match="all test samples are damaged"):
        loop.evaluate(lambda images: torch.zeros(len(images), 4), torch.nn.Identity(), few, world, lambda: False)


def test_a_directory_of_classes_trains_like_its_shards(photographs: Path, tmp_path: Path) -> None:
    import make_shards
    from trainer.datasets import shards
    from trainer.errors import InputError

    found = shards.open_shards(spelt_out(photographs))
    for number in range(len(found)):
        blob, label = found.read(number)
        place = tmp_path / "images/train" / f"class {label}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:04d}.jpg").write_bytes(blob)
    shutil.copytree(tmp_path / "images/train", tmp_path / "images/val")

    ours = batches("--data", str(tmp_path / "images"))

    assert (len(ours.data.train), len(ours.data.test), ours.data.classes) == (SAMPLES, SAMPLES, 4)
    assert make_shards.main([str(tmp_path / "images/train"), str(tmp_path / "again"), "--samples-per-shard", "25"]) == 0
    again = shards.open_shards(str(tmp_path / "again"))
    original = sorted((bytes(blob), label) for blob, label in map(found.read, range(len(found))))
    assert sorted((bytes(blob), label) for blob, label in map(again.read, range(len(again)))) == original
    shutil.rmtree(tmp_path / "images/val/class 3")
    with pytest.raises(InputError, match=r"4 classes and .*3; not in both: class 3"):
        batches("--data", str(tmp_path / "images"))


def test_threads_are_as_many_as_asked_for_or_this_ranks_share_of_the_cores(
    photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.datasets import load_data
    from trainer.flags import parse
    from trainer.loader import thread_count
    from trainer.sources import InMemory

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    given, none, unset = (
        batches("--data", spelt_out(photographs), *more) for more in (("--workers", "2"), ("--workers", "0"), ())
    )
    digits = load_data(parse([], 1), 1).train

    assert (given.threads, none.threads, unset.threads) == (2, 0, 4)
    assert isinstance(digits, InMemory)
    assert thread_count(parse([], 1), given.world, digits) == 0, "nothing to decode"
    for one in (given, none, unset):
        one.close()


def test_a_rank_that_is_bound_to_cores_of_its_own_uses_all_of_them(
    photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with --numa-binding; of those that it shares with others, it uses its part."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    for bound, threads in ((3, 3), (6, 3), (12, 3), (2, 2)):
        cores = {0: set(range(bound)), os.getppid(): set(range(12))}
        monkeypatch.setattr(os, "sched_getaffinity", cores.__getitem__)
        ours = batches("--data", spelt_out(photographs))
        assert ours.threads == threads
        ours.close()


def test_a_row_of_the_table_keeps_no_images_of_its_batches(photographs: Path) -> None:
    """Also of thousands of steps on a GPU."""
    import torch
    from trainer.log import Row

    ours, row, images = batches("--data", spelt_out(photographs), "--workers", "0"), Row(), []
    for batch in ours.train(0):
        row.add(batch, torch.zeros(()))
        images.append(weakref.ref(batch.images))
    del batch

    assert row.samples == 54
    assert [one() for one in images] == [None] * len(row.losses)
