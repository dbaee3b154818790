"""Shards that are read as a stream (--reader webdataset)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.train.photographs import batches, spelt_out

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def stream_of(photographs: Path, samples: int) -> list[str]:
    """Flags for an epoch of this many samples from a stream, tested on the photographs."""
    flags = f"--reader webdataset --samples {samples} --classes 4 --workers 2 --test-data".split()
    return [*flags, spelt_out(photographs)]


def test_the_samples_of_a_stream_are_those_of_its_shards(photographs: Path) -> None:
    import torch
    from trainer.errors import InputError

    flags = stream_of(photographs, 32)
    ours = batches("--data", f"pipe:cat {spelt_out(photographs)}", *flags)
    labels = torch.cat([batch.labels for batch in ours.train(0)])
    ours.close()

    assert len(labels) == 32
    assert set(labels.tolist()) <= {0, 1, 2, 3}
    assert len(set(labels.tolist())) > 1
    with pytest.raises(InputError, match="--reader webdataset needs --classes and --test-data"):
        batches("--data", spelt_out(photographs), "--reader", "webdataset")


def test_each_start_of_a_run_draws_other_shards(photographs: Path, tmp_path: Path) -> None:
    """Else a run that is preempted now and then would have the same part of its data again and again."""

    def drawn(log: Path) -> list[str]:
        shard = photographs / "data-000000.tar"
        ours = batches("--data", f"pipe:echo {{00..99}} >> {log}; cat {shard}", *stream_of(photographs, 320))
        assert sum(batch.samples for batch in ours.train(0)) == 320
        ours.close()
        return log.read_text().split()

    first, again = drawn(tmp_path / "first"), drawn(tmp_path / "again")

    assert min(len(first), len(again)) >= 16, "a shard has 20 samples"
    assert first[:16] != again[:16]


def test_only_shards_in_a_row_without_samples_end_a_stream(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many more are drawn here than may give nothing one after the other."""
    from trainer.datasets import stream

    monkeypatch.setattr(stream, "FRUITLESS", 2)
    flags = stream_of(photographs, 160)
    ours = batches("--data", f"pipe:cat {spelt_out(photographs)}", *flags)

    assert sum(batch.samples for epoch in range(2) for batch in ours.train(epoch)) == 320
    ours.close()


@pytest.mark.parametrize(("command", "said"), [("cat /dev/null", "empty file"), ("cat /nope/gone", "exit 1")])
def test_a_stream_without_samples_ends(
    photographs: Path, command: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from trainer.errors import TrainingError

    flags = stream_of(photographs, 32)
    ours = batches("--data", f"pipe:{command}", *flags)

    with pytest.raises(
        TrainingError, match=f"pipe:{command}: 20 shards in a row have no samples; .*({said}|empty file)"
    ):
        list(ours.train(0))

    ours.close()
    assert f"pipe:{command}" in capfd.readouterr().err
