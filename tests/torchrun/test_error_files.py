"""The launcher's own TORCHELASTIC_ERROR_FILE has the error that ended this node's workers, or there is none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.torchrun.node import Node

ONLY_ONCE = """
import os
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("boom")
os._exit(3)
"""
ONE_FAILS = """
import os, signal, time
def end(number, frame):
    raise ValueError("ended")
if os.environ["RANK"] == "1":
    signal.signal(signal.SIGTERM, end)
open(f"up.{os.environ['RANK']}", "w").close()
if os.environ["RANK"] == "2":
    while not os.path.exists("up.1"):
        time.sleep(0.02)
    raise ValueError("boom")
time.sleep(600)
"""


def test_an_error_of_an_attempt_that_was_followed_by_another_is_not_the_last_ones(
    start: Callable[..., Node], tmp_path: Path
) -> None:
    path = tmp_path / "error.json"
    node = start(ONLY_ONCE, "--standalone", "--max-restarts=1", "x.py", env={"TORCHELASTIC_ERROR_FILE": str(path)})

    assert node.wait() == 1
    assert "restart 1 of 1: ValueError: boom" in node.err
    assert not path.exists()


def test_each_node_has_the_error_of_its_own_first_worker(start: Callable[..., Node], port: int, tmp_path: Path) -> None:
    paths = [tmp_path / f"error.{rank}" for rank in range(2)]
    options = ["--nnodes=2", "--nproc-per-node=2", "--master-port", str(port)]
    nodes = [
        start(ONE_FAILS, *options, f"--node-rank={rank}", "x.py", env={"TORCHELASTIC_ERROR_FILE": str(path)})
        for rank, path in enumerate(paths)
    ]

    assert [node.wait() for node in nodes] == [1, 1]
    found = [json.loads(path.read_text())["message"] for path in paths]
    assert [(each["message"], each.get("errorCode")) for each in found] == [
        ("ValueError: ended", None), ("ValueError: boom", 1),
    ]  # fmt: skip
