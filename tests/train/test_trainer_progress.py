"""The trainer tells distlaunch how far it is, and `status` has it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

pytestmark = pytest.mark.torch


def test_the_last_step_and_loss_are_in_the_status(distlaunch: Cli, scripts: Path) -> None:
    """Also of a run that is too short for a sample while it trains."""
    metrics = distlaunch.directory / "metrics.jsonl"
    run = distlaunch("local", "--nproc-per-node", "2", str(scripts / "train.py"), "--metrics", str(metrics))
    assert run.exit_code == 0, run.stderr
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    losses = [record["loss"] for record in records if record["event"] == "train"]

    told = distlaunch("status", "last", env={"DISTLAUNCH_OUTPUT": "json"}).json["result"]["progress"]
    assert (told["step"], told["steps"], told["ranks"]) == (records[-1]["step"], records[-1]["step"], 2)
    assert told["loss"] == pytest.approx(losses[-1], rel=1e-4)
    assert told["eta_s"] is None, "it has ended"
    shown = distlaunch("status", "last").stdout
    assert f"progress step {told['step']} of {told['step']} (100 %), loss {told['loss']:.4g}" in shown
