"""A step of the trainer does what plain torch does with the same samples; rates and averages follow their formulas."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from tests.train.held import origin

if TYPE_CHECKING:
    from pathlib import Path

    from tests.train.conftest import Alone, Together

pytestmark = pytest.mark.torch

PLAIN = """
import copy, json, sys; sys.path.insert(0, {scripts!r})
import numpy as np, torch, train
from torch.nn.functional import cross_entropy
from trainer.order import key, permute
from trainer.world import process_group

def samples(source, numbers):
    images, labels = torch.empty(len(numbers), 1, 8, 8, dtype=torch.uint8), torch.empty(len(numbers), dtype=torch.int64)
    source.fill(numbers, None, images, labels)
    return (images.float() - 127) / 47, labels

with process_group() as world:
    trainer = train.Trainer(world)
    net, data = copy.deepcopy(trainer.net), trainer.data
    average = [one.detach().clone() for one in net.parameters()]
    heavy, light = ([one for one in net.parameters() if (one.ndim > 1) == many] for many in (True, False))
    optimizer = torch.optim.SGD(
        [dict(params=heavy, weight_decay=0.1), dict(params=light, weight_decay=0)], lr=0.05, momentum=0.8, nesterov=True
    )
    losses, norms, counts = [], [], []
    for start, end in trainer.batches.order.spans():
        images, labels = samples(data.train, permute(np.arange(start, end), 100, key(7, 0)))
        optimizer.zero_grad()
        loss = cross_entropy(net(images), labels, label_smoothing=0.1)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(net.parameters(), 0.7)))
        optimizer.step()
        losses.append(loss.item()), counts.append(len(labels))
        average = [0.75 * kept + 0.25 * now.detach() for kept, now in zip(average, net.parameters())]
    assert max(norms) > 0.7, norms
    assert counts == [24, 24, 24, 28], counts

    assert trainer.train() == 0
    for ours, plain in zip(trainer.net.parameters(), net.parameters()):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
    for ours, plain in zip(trainer.update.average.shadow.values(), average):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for parameter, kept in zip(net.parameters(), average):
            parameter.copy_(kept)
        images, labels = samples(data.test, np.arange(12))
        logits = net(images)
    if world.rank == 0:
        best = logits.topk(5).indices == labels[:, None]
        told = dict(rows=list(zip(losses, counts)), loss=cross_entropy(logits, labels).item())
        print(json.dumps(dict(told, correct=int(best[:, 0].sum()), correct5=int(best.sum()))))
    del trainer
"""


def test_steps_of_three_ranks_are_those_of_plain_torch_on_all_samples(
    ranks: Together, scripts: Path, tmp_path: Path
) -> None:
    """With unequal shares, accumulation, clipping, smoothing, momentum and weight decay; a moving average is tested."""
    driver, metrics = tmp_path / "driver.py", tmp_path / "metrics.jsonl"
    driver.write_text(PLAIN.format(scripts=str(scripts)))
    flags = "--epochs 1 --data synthetic --samples 100 --image-shape 1x8x8 --classes 6 --batch-size 8"
    flags += " --accumulate 2 --seed 7"
    flags += " --optimizer sgd --lr 0.05 --momentum 0.8 --weight-decay 0.1 --clip-norm 0.7 --label-smoothing 0.1"
    flags += " --schedule constant --warmup 0 --ema-decay 0.75 --log-every 2"

    done = ranks(3, driver, *flags.split(), "--metrics", str(metrics))

    assert done.codes == [0, 0, 0], done.stderr
    plain = json.loads(done.outs[0].splitlines()[-1])
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    rows = [record for record in records if record["event"] == "train"]
    expected = [plain["rows"][:2], plain["rows"][2:]]
    means = [sum(loss * count for loss, count in row) / sum(count for _, count in row) for row in expected]
    assert [row["loss"] for row in rows] == pytest.approx(means, rel=1e-4)
    assert [row["samples"] for row in rows] == [48, 100]
    (tested,) = [record for record in records if record["event"] == "test"]
    assert tested["loss"] == pytest.approx(plain["loss"], rel=1e-4)
    assert (tested["correct"], tested["total"]) == (plain["correct"], 12)
    assert tested["accuracy5"] == plain["correct5"] / 12


PARTS = """
import json, sys; sys.path.insert(0, {scripts!r})
import torch, train
from dataclasses import replace
from trainer.world import process_group

with process_group() as world:
    trainer, sizes = train.Trainer(world), []
    trainer.net.register_forward_hook(lambda net, args, out: sizes.append(len(args[0])))
    (batch,) = trainer.batches.train(0)
    few = batch if world.rank == 0 else replace(batch, images=batch.images[:3], labels=batch.labels[:3])
    expected = torch.nn.functional.cross_entropy(trainer.network.own_logits(few.images), few.labels).item()
    sizes.clear()
    losses = [trainer.train_step(few).item(), expected]
    trainer.train_step(batch)
    print(json.dumps([sizes, losses]))
    trainer.close()
    del trainer
"""


def test_all_ranks_make_their_batches_into_the_same_number_of_parts(
    ranks: Together, scripts: Path, tmp_path: Path
) -> None:
    """With 15 and 14 samples, and once with 3 after damage: a part is a collective if the weights are sharded."""
    driver = tmp_path / "driver.py"
    driver.write_text(PARTS.format(scripts=str(scripts)))
    flags = "--data synthetic --samples 29 --image-shape 1x8x8 --classes 6 --batch-size 14 --accumulate 8"

    done = ranks(2, driver, *flags.split(), "--sync", "average-gradients")

    assert done.codes == [0, 0], done.stderr
    sizes, losses = zip(*(json.loads(out.splitlines()[-1]) for out in done.outs), strict=True)
    assert sizes[0] == [2, 2, 2, 2, 2, 2, 2, 1] * 2
    assert sizes[1] == [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 1, 1]
    assert [loss for loss, _ in losses] == pytest.approx([mean for _, mean in losses], rel=1e-4)


def test_norms_over_batches_have_two_samples_in_every_part(ranks: Together, alone: Alone, tmp_path: Path) -> None:
    """In the last step, with 6 samples per rank, and in one that resumes on more ranks, with 2 and 1."""
    model = ["--data", "synthetic", "--model", "resnet18", "--image-shape", "3x32x32", "--report", "none"]
    parts = ["--samples", "44", "--batch-size", "8", "--accumulate", "4"]
    few = ["--samples", "23", "--batch-size", "20", "--out", str(tmp_path), "--checkpoint-steps", "1", "--keep", "9"]
    assert alone("train.py", *model, *few).returncode == 0
    first = ("--resume", str(tmp_path / "checkpoint-00000001.pt"), "--batch-size", "11")

    for flags in (parts, (*few, *first)):
        done = ranks(2, "train.py", *model, *flags)
        assert done.codes == [0, 0], done.stderr
    assert origin(done).startswith("resumed from ")


@pytest.mark.parametrize(
    ("schedule", "share", "part"),
    [
        ("cosine", 0.0, 0.01),
        ("cosine", 0.1, 0.51),
        ("cosine", 0.2, 1.0),
        ("cosine", 0.6, 0.5),
        ("cosine", 0.4, 0.5 * (1 + math.cos(math.pi / 4))),
        ("cosine", 1.0, 0.0),
        ("step", 0.1, 0.51),
        ("step", 0.3, 1.0),
        ("step", 0.34, 0.1),
        ("step", 0.67, 0.01),
        ("step", 0.9, 0.001),
        ("constant", 0.1, 0.51),
        ("constant", 1.0, 1.0),
    ],
)
def test_the_learning_rate_rises_in_the_warm_up_and_then_follows_its_schedule(
    schedule: str, share: float, part: float
) -> None:
    from trainer.optim import learning_rate

    assert learning_rate(3.0, share, schedule=schedule, warmup=0.2) == pytest.approx(3.0 * part)


@pytest.mark.parametrize(("more", "peak"), [((), 0.5), (("--scale-lr", "64"), 0.5 * 32 * 4 / 64)])
def test_each_step_has_the_learning_rate_of_its_place_in_the_run(more: tuple[str, ...], peak: float) -> None:
    """A quarter of the third of four epochs; with the linear rule for the batch of all ranks."""
    import torch
    from trainer.checkpoint import Progress
    from trainer.flags import parse
    from trainer.optim import learning_rate, make_optimizer, set_learning_rate

    config = parse(["--lr", "0.5", "--epochs", "4", "--batch-size", "32", *more], 4)
    optimizer = make_optimizer(config, torch.nn.Linear(2, 2))

    rate = set_learning_rate(optimizer, config, Progress(epoch=2, epoch_samples=25), 100, 4)

    assert rate == pytest.approx(learning_rate(peak, 2.25 / 4))
    assert [group["lr"] for group in optimizer.param_groups] == [rate, rate]


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_only_weights_decay_and_what_is_frozen_is_left_alone(kind: str) -> None:
    import torch
    from trainer.flags import parse
    from trainer.optim import make_optimizer

    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 3))
    net[2].requires_grad_(False)

    optimizer = make_optimizer(parse(["--optimizer", kind, "--weight-decay", "0.3", "--momentum", "0.7"], 1), net)

    decays: dict[Any, float] = {
        one: group["weight_decay"] for group in optimizer.param_groups for one in group["params"]
    }
    assert decays == {net[0].weight: 0.3, net[0].bias: 0.0, net[1].weight: 0.0, net[1].bias: 0.0}
    if kind == "sgd":
        assert {(group["momentum"], group["nesterov"]) for group in optimizer.param_groups} == {(0.7, True)}


def test_the_average_is_in_place_within_its_block_only() -> None:
    import torch
    from trainer.optim import Average

    net = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(net.weight, 1.0)
    average = Average(net, 0.9)
    torch.nn.init.constant_(net.weight, 2.0)
    average.update()

    def interrupted() -> None:
        with average.in_place():
            assert net.weight.item() == pytest.approx(1.1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert net.weight.item() == 2.0
    average.update()
    assert average.shadow["weight"].item() == pytest.approx(1.19)


def test_limits_and_combinations_of_settings_are_checked() -> None:
    """Settings that need or exclude one another, and the limits of numbers."""
    from trainer.errors import InputError
    from trainer.flags import parse

    for argv, message in [
        (["--accumulate", "65", "--batch-size", "64"], "--accumulate 65 parts cannot be made of --batch-size 64"),
        (
            ["--ema-decay", "0.9", "--sync", "async-parameter-server"],
            "--ema-decay needs ranks that hold the same weights",
        ),
        (["--precision", "fp16", "--sync", "parameter-server"], "has no place; take bf16"),
        (["--clip-norm", "0"], "--clip-norm must be above 0"),
        (["--label-smoothing", "1.1"], "--label-smoothing must be between 0 and 1"),
    ]:
        with pytest.raises(InputError, match=message):
            parse(argv, 1)
    assert (
        parse(["--accumulate", "64", "--batch-size", "64", "--label-smoothing", "1", "--warmup", "0"], 1).accumulate
        == 64
    )


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 16, 32)])
def test_the_small_model_has_a_deterministic_kernel_of_the_same_result(shape: tuple[int, int, int]) -> None:
    """On a GPU, torch has none to differentiate an adaptive maximum with --deterministic."""
    import torch
    from trainer.model import SmallNet

    net = SmallNet(shape, 10)
    places = [place for place, one in enumerate(net.features) if isinstance(one, torch.nn.MaxPool2d)]
    images, gradients = torch.randn(8, *shape), []
    for _ in range(2):
        net.zero_grad()
        logits = net(images)
        logits.square().sum().backward()
        gradients.append([logits.detach(), *(one.grad for one in net.parameters() if one.grad is not None)])
        net.features[places[0]] = torch.nn.AdaptiveMaxPool2d(4)

    assert len(places) == 1
    assert all(map(torch.equal, *gradients))


def test_where_the_small_model_cannot_be_deterministic_it_is_refused() -> None:
    import torch
    from trainer.errors import InputError
    from trainer.flags import parse
    from trainer.model import build_model

    config = parse(["--data", "synthetic", "--model", "small", "--image-shape", "3x30x32", "--deterministic"], 1)

    with pytest.raises(InputError, match=r"--deterministic on a GPU: the small model takes .* multiples of 4"):
        build_model(config, 10, torch.device("cuda"))
    build_model(config, 10, torch.device("cpu"))
