"""Shards: what the index holds, and what happens to damaged ones."""

from __future__ import annotations

import io
import json
import os
import tarfile
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.train.photographs import SAMPLES, rebuilt, spelt_out

if TYPE_CHECKING:
    from pathlib import Path

    from tests.train.conftest import Together

pytestmark = pytest.mark.torch


def test_every_sample_is_read_as_the_tar_has_it(photographs: Path) -> None:
    from trainer.datasets import shards

    found = shards.open_shards(spelt_out(photographs))

    expected = []
    for path in sorted(photographs.glob("*.tar")):
        with tarfile.open(path) as tar:
            files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        expected += [(blob, int(files[name[:-3] + "cls"])) for name, blob in files.items() if name.endswith("jpg")]
    assert [(bytes(blob), label) for blob, label in map(found.read, range(len(found)))] == expected
    assert found.name(21).endswith("data-000001.tar: 00000021.jpg")
    assert found.classes == 4


def test_the_index_is_small_mapped_and_built_once(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.datasets import shard_index, shards

    monkeypatch.setattr(shard_index, "build", lambda path: pytest.fail(f"{path} was indexed again"))

    found = shards.open_shards(spelt_out(photographs))

    assert all(isinstance(index.records.base, np.memmap) for index in found.indices)
    sizes = [os.path.getsize(f"{path}.idx") for path in found.paths]
    assert sizes == [shard_index.HEADER.itemsize + 20 * 16] * 3
    assert shard_index.RECORD.itemsize < 32


def test_a_shard_that_changed_is_indexed_again(photographs_copy: Path) -> None:
    from trainer.datasets import shards

    shard = photographs_copy / "data-000001.tar"
    rebuilt(shard, lambda name, blob: None if name.startswith("00000020") else b"3" if name.endswith("cls") else blob)

    found = shards.open_shards(spelt_out(photographs_copy))

    assert len(found) == SAMPLES - 1
    assert {found.read(number)[1] for number in range(20, 39)} == {3}


def test_where_the_index_cannot_be_written_it_is_kept_in_the_cache_directory(
    photographs_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.datasets import shard_index, shards

    for path in photographs_copy.glob("*.idx"):
        path.unlink()
        path.with_name(path.name).mkdir()  # not even root can write a file there
    before = {path.name for path in photographs_copy.iterdir()}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))

    assert len(shards.open_shards(spelt_out(photographs_copy))) == SAMPLES
    assert len(list((tmp_path / "caches/distlaunch").iterdir())) == 3
    assert {path.name for path in photographs_copy.iterdir()} == before, "the attempts leave nothing"
    monkeypatch.setattr(shard_index, "build", lambda path: pytest.fail(f"{path} was indexed again"))
    assert len(shards.open_shards(spelt_out(photographs_copy))) == SAMPLES


def test_ranks_share_the_indexing(photographs_copy: Path) -> None:
    from trainer.datasets import prepare
    from trainer.flags import parse

    for path in photographs_copy.glob("*.idx"):
        path.unlink()

    prepare(parse(["--data", spelt_out(photographs_copy)], 2), 1, 2)

    assert [path.name for path in photographs_copy.glob("*.idx")] == ["data-000001.tar.idx"]


def test_classes_may_be_in_json_and_a_sample_without_one_is_counted(photographs_copy: Path) -> None:
    from trainer.datasets import shards

    def as_json(name: str, blob: bytes) -> bytes | None:
        return None if name == "00000003.cls" else blob

    shard = photographs_copy / "data-000000.tar"
    rebuilt(shard, as_json)
    with tarfile.open(shard, "a") as tar:
        for name, blob in (("x.y/a.jpg", b"image"), ("x.y/a.json", json.dumps({"label": 9}).encode())):
            info = tarfile.TarInfo(name)
            info.size = len(blob)
            tar.addfile(info, io.BytesIO(blob))

    found = shards.open_shards(str(shard))

    assert found.read(19) == (bytearray(b"image"), 9)
    assert found.problems == [f"{shard}: 1 samples without an image or a class"]


def test_a_shard_that_is_cut_off_gives_what_is_whole_and_is_named(photographs_copy: Path, ranks: Together) -> None:
    from trainer.datasets import load_data
    from trainer.errors import InputError
    from trainer.flags import parse

    shard = photographs_copy / "data-000002.tar"
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size // 2)

    data = load_data(parse(["--data", spelt_out(photographs_copy), "--batch-size", "4"], 1), 1)

    assert 40 < len(data.train) + len(data.test) < SAMPLES
    (problem,) = data.problems
    assert problem.startswith(f"{shard}: damaged or cut off (")
    with pytest.raises(InputError, match=r"damaged or cut off.*--strict"):
        load_data(parse(["--data", spelt_out(photographs_copy), "--batch-size", "4", "--strict"], 1), 1)
    done = ranks(
        2,
        "train.py",
        "--data",
        spelt_out(photographs_copy),
        "--batch-size",
        "4",
        "--epochs",
        "1",
        "--image-shape",
        "3x32x32",
    )
    assert done.codes == [0, 0], done.stderr
    assert [line for line in done.stdout.splitlines() if "warning" in line] == [f"warning: {problem}"]


@pytest.mark.parametrize("damage", [b"\xff" * 512, bytes(512), bytes(4096), b"", b"half a header"])
def test_a_shard_that_is_damaged_between_its_files_is_named(photographs_copy: Path, damage: bytes) -> None:
    """Overwritten, a hole in the file, or its end. To tarfile, all of these are the end of the tar."""
    from trainer.datasets import shards

    shard = photographs_copy / "data-000001.tar"
    with tarfile.open(shard) as tar:
        begin = tar.getmember("00000025.jpg").offset
    with shard.open("r+b") as file:
        file.seek(begin)
        file.write(damage)
        if len(damage) < 512:
            file.truncate()

    found = shards.open_shards(spelt_out(photographs_copy))

    assert len(found) == SAMPLES - 15
    assert found.problems == [f"{shard}: damaged or cut off (at byte {begin}); 5 samples are whole"]


def test_a_tar_that_another_one_was_added_to_is_named(photographs_copy: Path) -> None:
    """tar itself would stop there, too."""
    from trainer.datasets import shards

    first, second, _ = sorted(photographs_copy.glob("*.tar"))
    with first.open("ab") as both:
        both.write(second.read_bytes())

    found = shards.open_shards(str(first))

    assert len(found) == 20
    assert found.problems[0].startswith(f"{first}: damaged or cut off (at byte ")


def test_a_shard_that_is_cut_off_after_it_was_indexed_is_an_error_not_zeros(photographs_copy: Path) -> None:
    from trainer.datasets import shards

    found = shards.open_shards(spelt_out(photographs_copy))
    os.truncate(photographs_copy / "data-000002.tar", 10_000)

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
def test_a_pattern_without_samples_is_refused(photographs_copy: Path, pattern: str, message: str) -> None:
    from trainer.datasets import load_data
    from trainer.errors import InputError
    from trainer.flags import parse

    (photographs_copy / "empty.tar").touch()
    tarfile.open(photographs_copy / "none.tar", "w").close()

    with pytest.raises(InputError, match=message):
        load_data(parse(["--data", pattern.format(directory=photographs_copy)], 1), 1)


def test_labels_beyond_the_classes_are_refused(photographs: Path) -> None:
    from trainer.datasets import load_data
    from trainer.errors import InputError
    from trainer.flags import parse

    with pytest.raises(InputError, match="has labels up to 3, but --classes is 2"):
        load_data(parse(["--data", spelt_out(photographs), "--classes", "2"], 1), 1)


def test_test_shards_with_other_classes_are_refused(photographs: Path, photographs_copy: Path) -> None:
    from trainer.datasets import load_data
    from trainer.errors import InputError
    from trainer.flags import parse

    rebuilt(photographs_copy / "data-000000.tar", lambda name, blob: b"7" if name.endswith("cls") else blob)

    with pytest.raises(InputError, match="--test-data has labels up to 7, --data has 4 classes"):
        load_data(parse(["--data", spelt_out(photographs), "--test-data", spelt_out(photographs_copy)], 1), 1)


def test_shards_of_another_size_are_not_left_among_new_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import make_shards

    argv = ["synthetic", str(tmp_path / "out"), "--samples", "9", "--classes", "3", "--size", "8x8"]
    assert make_shards.main([*argv, "--samples-per-shard", "3"]) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    assert make_shards.main([*argv, "--samples-per-shard", "5"]) == 2

    out = tmp_path / "out"
    assert f"{out}/data-000002.tar is of other shards than these 2: remove them" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert make_shards.main([*argv, "--samples-per-shard", "3"]) == 0, "the same again may replace them"
    assert make_shards.main([*argv, "--samples-per-shard", "5", "--name", "other"]) == 0


def test_a_directory_with_data_sets_in_it_is_not_taken_for_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import make_shards

    for name in ("train", "val"):
        (tmp_path / name / "cat").mkdir(parents=True)
        (tmp_path / name / "cat/1.jpg").write_bytes(b"x")

    assert make_shards.main([str(tmp_path), str(tmp_path / "out")]) == 2

    assert f"make shards of {tmp_path}/train and the others" in capsys.readouterr().err
