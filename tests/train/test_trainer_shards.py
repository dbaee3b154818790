"""Shards: what the index says, which samples a batch holds, and what happens to damaged ones."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.loader import Batches

    from tests.train.conftest import Together

pytestmark = pytest.mark.torch

SAMPLES = 60


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of 20 small photographs of 4 classes."""
    import make_shards

    out = tmp_path_factory.mktemp("shards")
    flags = ["--samples", str(SAMPLES), "--classes", "4", "--size", "40x50", "--samples-per-shard", "20"]
    assert make_shards.main(["synthetic", str(out), *flags]) == 0
    return out


@pytest.fixture
def directory(made: Path, tmp_path: Path) -> Path:
    """The same, to spoil."""
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


def spelt_out(directory: Path) -> str:
    return str(directory / "data-{000000..000002}.tar")


def rebuilt(shard: Path, change: Any) -> None:
    """Write `shard` again with what `change(name, bytes)` returns for each member; None leaves it out."""
    with tarfile.open(shard) as tar:
        members = [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    with tarfile.open(shard, "w") as tar:
        for name, blob in members:
            new = change(name, blob)
            if new is not None:
                info = tarfile.TarInfo(name)
                info.size = len(new)
                tar.addfile(info, io.BytesIO(new))


def test_every_sample_is_read_as_the_tar_has_it(made: Path) -> None:
    from trainer.datasets import shards

    found = shards.open_shards(spelt_out(made))

    expected = []
    for path in sorted(made.glob("*.tar")):
        with tarfile.open(path) as tar:
            files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        expected += [(blob, int(files[name[:-3] + "cls"])) for name, blob in files.items() if name.endswith("jpg")]
    assert [(bytes(blob), label) for blob, label in map(found.read, range(len(found)))] == expected
    assert found.name(21).endswith("data-000001.tar: 00000021.jpg")
    assert found.classes == 4


def test_the_index_is_small_mapped_and_built_once(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.datasets import shard_index, shards

    monkeypatch.setattr(shard_index, "build", lambda path: pytest.fail(f"{path} was indexed again"))

    found = shards.open_shards(spelt_out(made))

    assert all(isinstance(index.records.base, np.memmap) for index in found.indices)
    sizes = [os.path.getsize(f"{path}.idx") for path in found.paths]
    assert sizes == [shard_index.HEADER.itemsize + 20 * 16] * 3
    assert shard_index.RECORD.itemsize < 32


def test_a_shard_that_changed_is_indexed_again(directory: Path) -> None:
    from trainer.datasets import shards

    shard = directory / "data-000001.tar"
    rebuilt(shard, lambda name, blob: None if name.startswith("00000020") else b"3" if name.endswith("cls") else blob)

    found = shards.open_shards(spelt_out(directory))

    assert len(found) == SAMPLES - 1
    assert {found.read(number)[1] for number in range(20, 39)} == {3}


def test_where_the_index_cannot_be_written_it_is_kept_among_the_caches(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.datasets import shard_index, shards

    for path in directory.glob("*.idx"):
        path.unlink()
        path.with_name(path.name).mkdir()  # not even root can write a file there
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))

    assert len(shards.open_shards(spelt_out(directory))) == SAMPLES
    assert len(list((tmp_path / "caches/distlaunch").iterdir())) == 3
    monkeypatch.setattr(shard_index, "build", lambda path: pytest.fail(f"{path} was indexed again"))
    assert len(shards.open_shards(spelt_out(directory))) == SAMPLES


def test_ranks_share_the_indexing(directory: Path) -> None:
    from trainer.datasets import prepare
    from trainer.flags import parse

    for path in directory.glob("*.idx"):
        path.unlink()

    prepare(parse(["--data", spelt_out(directory)], 2), 1, 2)

    assert [path.name for path in directory.glob("*.idx")] == ["data-000001.tar.idx"]


def test_classes_may_be_in_json_and_a_sample_without_one_is_counted(directory: Path) -> None:
    from trainer.datasets import shards

    def as_json(name: str, blob: bytes) -> bytes | None:
        return None if name == "00000003.cls" else blob

    shard = directory / "data-000000.tar"
    rebuilt(shard, as_json)
    with tarfile.open(shard, "a") as tar:
        for name, blob in (("x.y/a.jpg", b"image"), ("x.y/a.json", json.dumps({"label": 9}).encode())):
            info = tarfile.TarInfo(name)
            info.size = len(blob)
            tar.addfile(info, io.BytesIO(blob))

    found = shards.open_shards(str(shard))

    assert found.read(19) == (bytearray(b"image"), 9)
    assert found.problems == [f"{shard}: 1 samples without an image or a class"]


def test_a_shard_that_is_cut_off_gives_what_is_whole_and_is_named(directory: Path, ranks: Together) -> None:
    from trainer.datasets import load_data
    from trainer.errors import InputError
    from trainer.flags import parse

    shard = directory / "data-000002.tar"
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size // 2)

    data = load_data(parse(["--data", spelt_out(directory), "--batch-size", "4"], 1), 1)

    assert 40 < len(data.train) + len(data.test) < SAMPLES
    (problem,) = data.problems
    assert problem.startswith(f"{shard}: damaged or cut off (")
    with pytest.raises(InputError, match=r"damaged or cut off.*--strict"):
        load_data(parse(["--data", spelt_out(directory), "--batch-size", "4", "--strict"], 1), 1)
    done = ranks(2, "train.py", "--data", spelt_out(directory), "--batch-size", "4", "--epochs", "1", "--image-shape", "3x32x32")
    assert done.codes == [0, 0], done.stderr
    assert [line for line in done.stdout.splitlines() if "warning" in line] == [f"warning: {problem}"]


def test_a_shard_that_is_cut_off_after_it_was_indexed_is_an_error_not_zeros(directory: Path) -> None:
    from trainer.datasets import shards

    found = shards.open_shards(spelt_out(directory))
    os.truncate(directory / "data-000002.tar", 10_000)

    with pytest.raises(OSError, match=r"the shard ends before byte \d+; it was cut off since it was indexed"):
        found.read(59)
    assert found.read(0)[0][:2] == b"\xff\xd8", "the others are whole"


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("{directory}/nothing-*.tar", "no shards match; shards are files named like"),
        ("{directory}/data-{{000000..000005}}.tar", r"data-000003.tar does not exist \(3 of 6 shards do\)"),
        ("{directory}/empty.tar", "no samples in 1 shards: .*empty.tar: damaged or cut off .*0 samples are whole"),
        ("{directory}/none.tar", "no samples in 1 shards"),
    ],
)
def test_a_pattern_without_samples_is_refused(directory: Path, pattern: str, message: str) -> None:
    from trainer.datasets import load_data
    from trainer.errors import InputError
    from trainer.flags import parse

    (directory / "empty.tar").touch()
    tarfile.open(directory / "none.tar", "w").close()

    with pytest.raises(InputError, match=message):
        load_data(parse(["--data", pattern.format(directory=directory)], 1), 1)


def test_labels_beyond_the_classes_are_refused(made: Path) -> None:
    from trainer.datasets import load_data
    from trainer.errors import InputError
    from trainer.flags import parse

    with pytest.raises(InputError, match="has labels up to 3, but --classes is 2"):
        load_data(parse(["--data", spelt_out(made), "--classes", "2"], 1), 1)


def test_test_shards_with_other_classes_are_refused(made: Path, directory: Path) -> None:
    from trainer.datasets import load_data
    from trainer.errors import InputError
    from trainer.flags import parse

    rebuilt(directory / "data-000000.tar", lambda name, blob: b"7" if name.endswith("cls") else blob)

    with pytest.raises(InputError, match="--test-data has labels up to 7, --data has 4 classes"):
        load_data(parse(["--data", spelt_out(made), "--test-data", spelt_out(directory)], 1), 1)


def batches(*argv: str, rank: int = 0, count: int = 1) -> Batches:
    """Those of one rank."""
    import torch
    from trainer.datasets import load_data
    from trainer.flags import parse
    from trainer.loader import Batches
    from trainer.world import World

    config = parse(["--model", "resnet18", "--image-shape", "3x24x32", "--batch-size", "8", *argv], count)
    return Batches(load_data(config, count), config, World(rank, rank, count, torch.device("cpu")))


def test_an_epoch_and_the_held_out_tenth_are_all_samples_once(made: Path) -> None:
    ours = batches("--data", spelt_out(made), "--workers", "2")
    names = [ours.data.train.name(number) for batch in ours.train(0) for number in batch.numbers]
    names += [ours.data.test.name(number) for batch in ours.test() for number in batch.numbers]
    tested = sum(batch.samples for batch in ours.test())
    ours.close()

    assert len(names) == SAMPLES
    assert len(set(names)) == SAMPLES
    assert tested == 6


def test_ranks_with_unequal_shares_count_by_their_samples(made: Path) -> None:
    """54 samples in steps of 16: what is left, less than two for each of 4 ranks, joins the last step."""
    every = [batches("--data", spelt_out(made), "--batch-size", "4", "--workers", "0", rank=rank, count=4) for rank in range(4)]

    *_, last = zip(*(ours.train(0) for ours in every), strict=True)

    assert [(batch.start, batch.end, batch.samples) for batch in last] == [(32, 54, share) for share in (6, 6, 5, 5)]
    assert [batch.weight for batch in last] == pytest.approx([share * 4 / 22 for share in (6, 6, 5, 5)])


def test_a_rank_without_samples_keeps_the_others_company(made: Path) -> None:
    """As when an epoch goes on with more ranks than it has samples left."""
    every = [batches("--data", spelt_out(made), "--batch-size", "4", "--workers", "0", rank=rank, count=4) for rank in range(4)]

    ((first, second, third, fourth),) = zip(*(ours.train(0, start=52) for ours in every), strict=True)

    assert [batch.weight for batch in (first, second, third, fourth)] == [2, 2, 0, 0]
    assert [batch.samples for batch in (first, second, third, fourth)] == [1, 1, 0, 0]
    assert len(third.images) == len(fourth.images) == 1
    assert third.numbers.tolist() == fourth.numbers.tolist() == first.numbers.tolist() != second.numbers.tolist()


@pytest.mark.parametrize("workers", ["0", "1", "3"])
def test_a_batch_is_the_same_whoever_loads_it_and_wherever_the_epoch_began(made: Path, workers: str) -> None:
    import torch

    one, other = batches("--data", spelt_out(made), "--workers", "0"), batches("--data", spelt_out(made), "--workers", workers)

    whole, later = list(one.train(2)), list(other.train(2, start=whole_end(one, 3)))
    other.close()

    assert len(later) == len(whole) - 3
    for ours, theirs in zip(later, whole[3:], strict=True):
        assert torch.equal(ours.images, theirs.images)
        assert torch.equal(ours.labels, theirs.labels)


def whole_end(ours: Batches, steps: int) -> int:
    return list(ours.order.spans())[steps - 1][1]


def test_images_are_cropped_as_torchvision_crops_them(made: Path) -> None:
    import torch
    from torchvision.transforms.v2 import functional
    from trainer import decode
    from trainer.datasets import shards

    blob, _ = shards.open_shards(spelt_out(made)).read(5)
    image, slot = decode.decode(blob, 3), torch.empty(3, 24, 32, dtype=torch.uint8).to(memory_format=torch.contiguous_format)
    slot = torch.empty(1, 3, 24, 32, dtype=torch.uint8, memory_format=torch.channels_last)[0]
    draws = [0.5, 0.5, 0.25, 0.75] * decode.TRIES + [0.9]

    decode.place(image, slot, draws)

    top, left, height, width = decode.random_crop(40, 50, draws)
    expected = functional.resized_crop(image, top, left, height, width, [24, 32], antialias=True)
    assert torch.equal(slot, expected)
    decode.place(image, slot, [*draws[:-1], 0.1])
    assert torch.equal(slot, expected.flip(-1))


def test_the_evaluation_looks_at_the_middle() -> None:
    import torch
    from trainer import decode

    image = torch.arange(40 * 80, dtype=torch.uint8).view(1, 40, 80)
    slot = torch.empty(1, 1, 35, 35, dtype=torch.uint8)[0]

    decode.place(image, slot, None)

    assert decode.center_crop(40, 80, (32, 32)) == (2, 22, 35, 35), "seven eighths of the shorter side"
    assert torch.equal(slot, image[:, 2:37, 22:57])


def test_small_images_are_moved_by_up_to_four_pixels_and_mirrored() -> None:
    import torch
    from trainer import decode

    images = torch.arange(1, 65, dtype=torch.uint8).view(1, 1, 8, 8).repeat(4, 1, 1, 1)
    draws = np.array([[0.5, 0.5, 0.9], [0.0, 0.5, 0.9], [0.5, 0.999, 0.9], [0.5, 0.5, 0.1]])

    same, down, left, mirrored = decode.shift_and_flip(images, draws, flip=True)[:, 0]

    assert torch.equal(same, images[0, 0])
    assert torch.equal(down[4:], images[0, 0, :4])
    assert down[:4].eq(0).all()
    assert torch.equal(left[:, :4], images[0, 0, :, 4:])
    assert left[:, 4:].eq(0).all()
    assert torch.equal(mirrored, images[0, 0].flip(-1))
    assert torch.equal(decode.shift_and_flip(images, draws, flip=False)[3, 0], images[0, 0])


def test_crops_are_distributed_as_torchvisions() -> None:
    """Mean and deviation of every side of the crop, over 4,000 of each."""
    import torch
    from torchvision.transforms import RandomResizedCrop
    from trainer import decode

    torch.manual_seed(0)
    image = torch.empty(1, 300, 500)
    theirs = np.array([RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)])
    ours = np.array([decode.random_crop(300, 500, draws) for draws in np.random.default_rng(0).random((4000, decode.DRAWS))])

    error = theirs.std(0) / 4000**0.5
    assert (np.abs(ours.mean(0) - theirs.mean(0)) < 5 * error).all()
    assert np.allclose(ours.std(0), theirs.std(0), rtol=0.08)


def test_a_damaged_image_is_skipped_counted_and_named(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from trainer.errors import TrainingError
    from trainer.sources import EncodedImages

    rebuilt(directory / "data-000000.tar", lambda name, blob: blob[:100] if name == "00000007.jpg" else blob)
    argv = ["--data", spelt_out(directory), "--test-data", spelt_out(directory), "--workers", "2"]
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


def test_a_directory_of_classes_trains_like_its_shards(made: Path, tmp_path: Path) -> None:
    import make_shards
    from trainer.datasets import shards
    from trainer.errors import InputError

    found = shards.open_shards(spelt_out(made))
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


def test_threads_are_as_many_as_asked_for_or_this_ranks_share_of_the_cores(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.datasets import load_data
    from trainer.flags import parse
    from trainer.loader import thread_count
    from trainer.sources import InMemory

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    given, none, unset = (batches("--data", spelt_out(made), *more) for more in (("--workers", "2"), ("--workers", "0"), ()))
    digits = load_data(parse([], 1), 1).train

    assert (given.threads, none.threads, unset.threads) == (2, 0, 4)
    assert isinstance(digits, InMemory)
    assert thread_count(parse([], 1), given.world, digits) == 0, "nothing to decode"
    for one in (given, none, unset):
        one.close()


def test_a_streams_samples_are_the_shards(made: Path) -> None:
    import torch
    from trainer.errors import InputError

    flags = ["--reader", "webdataset", "--samples", "32", "--classes", "4", "--test-data", spelt_out(made), "--workers", "2"]
    ours = batches("--data", f"pipe:cat {spelt_out(made)}", *flags)
    labels = torch.cat([batch.labels for batch in ours.train(0)])
    ours.close()

    assert len(labels) == 32
    assert set(labels.tolist()) <= {0, 1, 2, 3}
    assert len(set(labels.tolist())) > 1
    with pytest.raises(InputError, match="--reader webdataset needs --classes and --test-data"):
        batches("--data", spelt_out(made), "--reader", "webdataset")


def test_only_shards_in_a_row_without_samples_end_a_stream(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many more are drawn here than may give nothing one after the other."""
    from trainer.datasets import stream

    monkeypatch.setattr(stream, "FRUITLESS", 2)
    flags = ["--reader", "webdataset", "--samples", "160", "--classes", "4", "--test-data", spelt_out(made), "--workers", "2"]
    ours = batches("--data", f"pipe:cat {spelt_out(made)}", *flags)

    assert sum(batch.samples for epoch in range(2) for batch in ours.train(epoch)) == 320
    ours.close()


@pytest.mark.parametrize(("command", "said"), [("cat /dev/null", "empty file"), ("cat /nope/gone", "exit 1")])
def test_a_stream_without_samples_ends(made: Path, command: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    from trainer.errors import TrainingError

    flags = ["--reader", "webdataset", "--samples", "32", "--classes", "4", "--test-data", spelt_out(made), "--workers", "2"]
    ours = batches("--data", f"pipe:{command}", *flags)

    with pytest.raises(TrainingError, match=f"pipe:{command}: 20 shards in a row have no samples; .*({said}|empty file)"):
        list(ours.train(0))

    ours.close()
    assert f"pipe:{command}" in capfd.readouterr().err


def test_gray_and_upright_images_fit(tmp_path: Path) -> None:
    import torch
    from torchvision.io import decode_jpeg, encode_jpeg
    from trainer import decode

    slot = torch.empty(1, 3, 16, 16, dtype=torch.uint8, memory_format=torch.channels_last)[0]
    gray = encode_jpeg(torch.full((1, 90, 20), 200, dtype=torch.uint8))
    decode.place(decode.decode(bytearray(gray.numpy().tobytes()), 3), slot, None)

    assert (slot.float() - decode_jpeg(gray).float().mean()).abs().max() < 3
