"""Where relative output paths of a script lie is said, if hosts do not see the directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from launcher.cli import output_paths

if TYPE_CHECKING:
    from tests.command import Cli


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--out results", ["--out results"]),
        ("--output_dir=x --lr 3", ["--output_dir=x"]),
        ("--save-dir a/b --model.log_file c", ["--save-dir a/b"]),
        ("--checkpoint-dir ckpt -o y", ["--checkpoint-dir ckpt", "-o y"]),
        ("--out /data/x --save-dir ~/x --log-dir s3://b/x --output-dir=$X", []),
        ("--output json --save true --results 3 --out", []),
        ("--data-dir x --epochs 3 --input results --resume-file a", []),
    ],
)
def test_only_relative_paths_to_write_to_are_recognized(words: str, found: list[str]) -> None:
    assert list(output_paths._relative(words.split())) == found


def test_each_backend_says_where_they_lie(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    inventory = distlaunch.write("hosts.ini", "h1\n")
    script = ("--dry-run", "x.py", "--out", "results")
    lies = "warning: --out results is a relative path and lies in "

    over_ssh = distlaunch("ansible", "-i", str(inventory), *script).stderr
    pods = distlaunch("k8s", "--image", "i", *script).stderr

    assert f"{lies}~/.distlaunch/hosts/runs/x-" in over_ssh
    assert "/work on each host, not here\n" in over_ssh
    assert f"{lies}/distlaunch/run/files of each pod, which is deleted with it, not here\n" in pods
    for other in (
        ("local",), ("slurm",), ("ansible", "-i", str(inventory), "--in-place"),
        ("k8s", "--image", "i", "--volume", "pvc:data:/data"),
    ):  # fmt: skip
        assert "relative" not in distlaunch(*other, *script).stderr, other
