"""reduce.py: every rank says what it had and what it has, and fails if that is wrong."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

DRIVER = """
import runpy, torch.distributed as dist
dist.all_reduce = lambda value: value.fill_(7)
runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_each_rank_prints_its_value_before_and_after(torchrun: Any, ranks: int) -> None:
    run = torchrun(ranks, "reduce.py")

    total = ranks * (ranks + 1) // 2
    expected = [f"rank {r}/{ranks} on {socket.gethostname()}: before {r + 1}, after {total}" for r in range(ranks)]
    assert run.returncode == 0, run.stderr
    assert sorted(run.stdout.splitlines()) == expected


def test_without_a_launcher_it_is_a_world_of_one(alone: Any) -> None:
    run = alone("reduce.py")

    assert run.returncode == 0, run.stderr
    assert run.stdout == f"rank 0/1 on {socket.gethostname()}: before 1, after 1\n"
    assert run.stderr == ""


def test_a_wrong_sum_is_an_error_on_the_rank_that_saw_it(alone: Any, scripts: Path, tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER.format(script=str(scripts / "reduce.py")))

    run = alone(driver)

    assert run.returncode == 1
    assert run.stdout.endswith("before 1, after 7\n")
    assert run.stderr.endswith("error: all_reduce gave 7, but the sum of 1 to 1 is 1\n")
