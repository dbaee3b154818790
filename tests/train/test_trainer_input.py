"""A wrong request gets one clear error, on rank 0, and every rank ends."""

from __future__ import annotations

import importlib.util
import re
import shutil
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.pages import page
from tests.train.photographs import rebuilt

if TYPE_CHECKING:
    from pathlib import Path

    from tests.train.conftest import Together

pytestmark = pytest.mark.torch


def prepare(*argv: str, world_size: int = 2) -> None:
    """What each rank does before it communicates."""
    import torch
    from trainer.datasets import load_data
    from trainer.flags import parse
    from trainer.model import build_model

    flags = parse(argv, world_size)
    build_model(flags, load_data(flags, world_size).classes, torch.device("cpu"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model", "resnet81"], r"unknown model 'resnet81': did you mean resnet18 or .*--list-models prints all \d+"),
        (["--model", "zzz"], r"unknown model 'zzz': --list-models prints all \d+"),
        (["--data", "nmist"], "--data nmist: no such directory, and none of digits, imagenet, mnist"),
        (
            ["--data", "mnist", "--data-dir", "/nowhere"],
            "--data mnist: not in /nowhere; add --download, or set --data-dir",
        ),
        (["--data", "cifar10", "--image-shape", "1x32x32"], "--data cifar10 has images of 3 channels, --image-shape 1"),
        (["--optimizer", "adam"], "invalid choice: 'adam' .*adamw.*sgd"),
        (["--warmup", "2"], "--warmup must be between 0 and 1, not 2.0"),
        (["--comm-hook", "bf16", "--sync", "fsdp"], "--comm-hook belongs to --sync ddp, not to fsdp"),
        (["--init", "file"], "--init file needs --weights FILE"),
        (["--weights", "/nowhere.pt"], "--weights /nowhere.pt: No such file"),
        (["--model", "nowhere:make"], "--model nowhere:make: No module named 'nowhere'"),
        (["--model", "math:sqrt"], "--model math:sqrt: .*must return a torch.nn.Module"),
        (["--config", "/dev/zero"], "--config /dev/zero: this is no file"),
        (["--config", "/nowhere.toml"], "--config /nowhere.toml: No such file"),
        (
            ["--batch-size", "720"],
            "--batch-size 720 on 2 ranks makes 1440 samples .* 1438 .* digits; --batch-size can be at most 719",
        ),
        (["--batch-size", "0"], "--batch-size must be at least 1, not 0"),
        (["--epochs", "0"], "--epochs must be at least 1, not 0"),
        (["--epochs", "-3"], "--epochs must be at least 1, not -3"),
        (["--epochs", "many"], "--epochs: invalid int value: 'many'"),
        (["--lr", "0"], "--lr must be above 0, not 0.0"),
        (["--lr", "nan"], "--lr must be above 0, not nan"),
        (["--seed", "-1"], "--seed must be at least 0, not -1"),
        (["--workers", "-1"], "--workers must be at least 0, not -1"),
        (["--image-shape", "28x28"], "'28x28' is not of the form 3x224x224"),
        (["--model", "resnet18", "--image-shape", "1x32x32"], "resnet18 cannot take images of 1x32x32"),
        (["--model", "alexnet", "--image-shape", "3x32x32"], "alexnet cannot take .* try --image-shape 3x224x224"),
        (["--bogus"], "unrecognized arguments: --bogus; --help lists all flags"),
    ],
)
def test_a_wrong_flag_is_named_with_what_would_be_valid(argv: list[str], message: str) -> None:
    from trainer.errors import InputError

    with pytest.raises(InputError, match=message):
        prepare(*argv)


def test_more_ranks_than_samples_are_refused() -> None:
    from trainer.errors import InputError

    with pytest.raises(InputError, match="start at most 1438 ranks"):
        prepare(world_size=2000)


@pytest.mark.parametrize(
    ("package", "wanted", "argv"),
    [("sklearn", "scikit-learn", []), ("torchvision", "torchvision", ["--model", "resnet18"])],
)
def test_a_missing_package_is_named(
    package: str, wanted: str, argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.errors import InputError

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else real(name))

    with pytest.raises(InputError, match=f"pip install {wanted}"):
        prepare(*argv)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 64])
def test_the_default_batch_is_shared_among_the_ranks(world_size: int) -> None:
    from trainer.flags import parse

    assert parse([], world_size).batch_size == 128 // world_size


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", 'lr = 0.5\nepochs = 3\nimage-shape = [1, 8, 8]\naugment = false\nmodel = "small"\n'),
        ("a.yaml", "lr: 0.5\nepochs: 3\nimage_shape: 1x8x8\naugment: false\nmodel: small\n"),
    ],
)
def test_a_flag_overrides_the_file_and_print_config_shows_where_each_value_is_from(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainer.flags import parse

    (tmp_path / name).write_text(text)

    with pytest.raises(SystemExit) as ended:
        parse(["--config", str(tmp_path / name), "--epochs", "7", "--print-config"], 2)

    assert ended.value.code == 0
    said = dict(line.split(" = ") for line in capsys.readouterr().out.splitlines())
    assert said["epochs"] == "7  # flag"
    assert (said["lr"], said["augment"]) == ("0.5  # file", "false  # file")
    assert said["image_shape"] == "[1, 8, 8]  # file"
    assert (said["seed"], said["batch_size"], said["out"]) == ("0  # default", "64  # default", "null  # default")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("a.yaml", "channels_last: on", "on"),
        ("a.yaml", "channels-last: off", "off"),
        ("a.toml", "channels_last='off'", "off"),
    ],
)
def test_a_choice_that_yaml_takes_for_a_truth_value_is_that_choice(
    name: str, text: str, value: str, tmp_path: Path
) -> None:
    from trainer.flags import parse

    (tmp_path / name).write_text(text)

    assert parse(["--config", str(tmp_path / name)], 1).channels_last == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "lr = 'fast'\n", "a.toml: argument --lr: invalid float value: 'fast'"),
        ("a.toml", "lr = = 1\n", "a.toml: "),
        ("a.yaml", "bogus: 1\n", "a.yaml: unrecognized arguments: --bogus=1"),
        ("a.yaml", "- 1\n", "a.yaml: not a table of settings"),
    ],
)
def test_a_wrong_file_is_named(name: str, text: str, message: str, tmp_path: Path) -> None:
    from trainer.errors import InputError
    from trainer.flags import parse

    (tmp_path / name).write_text(text)

    with pytest.raises(InputError, match=f"--config .*{message}"):
        parse(["--config", str(tmp_path / name)], 1)


def refusal(ranks: Together, *argv: str, **more: Any) -> str:
    """The line that rank 0 alone prints; both ranks must end with status 2, by themselves."""
    done = ranks(2, "train.py", *argv, watched=False, **more)

    assert done.codes == [2, 2], done.stderr
    assert done.stdout == ""
    assert done.errs[1] == ""
    line = done.errs[0]
    assert line.startswith("train.py: error: ")
    assert line.count("\n") == 1
    return line


def test_two_ranks_with_a_wrong_flag_print_one_line(ranks: Together) -> None:
    assert refusal(ranks, "--epochs", "0") == "train.py: error: --epochs must be at least 1, not 0\n"


def test_an_error_on_another_rank_is_reported_with_its_host(ranks: Together, tmp_path: Path) -> None:
    (tmp_path / "drawn.py").write_text(
        "import os, torch\n"
        "def net(num_classes):\n    return torch.nn.Flatten() if os.environ['RANK'] == '0' else None\n"
    )

    line = refusal(ranks, "--model", "drawn:net", "--image-shape", "1x1x10", env={"PYTHONPATH": str(tmp_path)})

    assert line.startswith(
        f"train.py: error: rank 1 on {socket.gethostname()}: --model drawn:net: net returned NoneType"
    )


OWN_COPY = """
import os, sys; sys.path.insert(0, {scripts!r})
import train
sys.argv[2] = sys.argv[2].replace("RANK", os.environ["RANK"])
sys.exit(train.main())
"""


def test_ranks_that_have_other_samples_are_refused(
    photographs: Path, ranks: Together, scripts: Path, tmp_path: Path
) -> None:
    """As when hosts have copies of their own, one of which is cut off."""
    for rank in "01":
        shutil.copytree(photographs, tmp_path / rank)
    cut = tmp_path / "1" / "data-000001.tar"
    with cut.open("r+b") as shard:
        shard.truncate(cut.stat().st_size // 2)
    driver = tmp_path / "train.py"
    driver.write_text(OWN_COPY.format(scripts=str(scripts)))
    flags = ("--data", str(tmp_path / "RANK"), "--model", "small", "--image-shape", "3x24x32", "--batch-size", "4")

    done = ranks(2, driver, *flags, "--epochs", "1", "--report", "none", watched=False)

    assert done.codes == [2, 2], done.stderr
    assert re.fullmatch(
        rf"train.py: error: rank 1 on .*: --data {tmp_path}/1: 4\d training and 5 test samples of 4 classes, "
        rf"but 54 training and 6 test samples of 4 classes on rank 0; all hosts need the same files; "
        rf"{cut}: damaged or cut off .*\n",
        done.stderr,
    )


def test_problems_of_the_data_on_any_host_are_reported(
    photographs: Path, ranks: Together, scripts: Path, tmp_path: Path
) -> None:
    """Each has as many samples, but on the second one a further sample has no class."""
    for rank in "01":
        shutil.copytree(photographs, tmp_path / rank)
    rebuilt(tmp_path / "0/data-000002.tar", lambda name, blob: None if "00000059" in name else blob)
    rebuilt(tmp_path / "1/data-000002.tar", lambda name, blob: None if name == "00000059.cls" else blob)
    driver = tmp_path / "train.py"
    driver.write_text(OWN_COPY.format(scripts=str(scripts)))
    flags = ("--data", str(tmp_path / "RANK"), "--model", "small", "--image-shape", "3x24x32", "--batch-size", "4")

    done = ranks(2, driver, *flags, "--epochs", "1", "--report", "none")

    assert done.codes == [0, 0], done.stderr
    assert done.outs[0].startswith(f"warning: {tmp_path}/1/data-000002.tar: 1 samples without an image or a class\n")


def test_a_directory_that_cannot_be_written_is_refused(ranks: Together, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert "cannot write there: Not a directory" in refusal(ranks, "--out", str(tmp_path / "file" / "out"))


def test_metrics_that_cannot_be_written_are_refused(ranks: Together, tmp_path: Path) -> None:
    assert f"--metrics {tmp_path}" in refusal(ranks, "--metrics", str(tmp_path))


def test_help_and_the_list_of_models_come_from_rank_0_alone(ranks: Together) -> None:
    shown, listed = ranks(2, "train.py", "--help"), ranks(2, "train.py", "--list-models")

    assert shown.outs[0].count("usage: train.py") == 1
    assert listed.outs[0].splitlines().count("resnet18") == 1
    assert [shown.outs[1], listed.outs[1]] == ["", ""]
    assert [*shown.codes, *listed.codes] == [0] * 4


def test_the_options_that_the_documentation_names_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    import make_shards
    from trainer.flags import parse

    for show in (lambda: parse(["--help"], 1), lambda: make_shards.main(["--help"])):
        with pytest.raises(SystemExit, match="0"):
            show()
    options = set(re.findall(r"^ +(?:-h, )?--([a-z][a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    text = re.sub(r"`distlaunch [^`]*`|^(distlaunch|torchrun).*$", "", page("docs/training.md"), flags=re.MULTILINE)

    distlaunchs = {"preload", "nproc-per-node"}
    assert set(re.findall(r"--([a-z][a-z-]+)", text)) - options == distlaunchs
