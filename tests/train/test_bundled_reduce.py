"""reduce.py: every rank prints its value before and after, and fails if the result is wrong."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.train.conftest import Alone, Together

pytestmark = pytest.mark.torch

WRONG_ON_RANK_1 = """
import os, runpy, torch.distributed as dist
right = dist.all_reduce
dist.all_reduce = lambda value: (right(value), value.add_(int(os.environ["RANK"])))
runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.mark.parametrize("count", [1, 2, 4])
def test_each_rank_prints_its_value_before_and_after(ranks: Together, count: int) -> None:
    done = ranks(count, "reduce.py")

    total, host = count * (count + 1) // 2, socket.gethostname()
    assert done.codes == [0] * count, done.stderr
    assert done.outs == [f"rank {r}/{count} on {host}: before {r + 1}, after {total}\n" for r in range(count)]


def test_without_a_launcher_it_is_a_world_of_one(alone: Alone) -> None:
    run = alone("reduce.py")

    assert run.returncode == 0, run.stderr
    assert run.stdout == f"rank 0/1 on {socket.gethostname()}: before 1, after 1\n"
    assert run.stderr == ""


def test_a_wrong_sum_is_an_error_on_the_rank_that_saw_it(ranks: Together, scripts: Path, tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(WRONG_ON_RANK_1.format(script=str(scripts / "reduce.py")))

    done = ranks(2, driver, watched=False)

    assert done.codes == [0, 1], done.stderr
    assert [out.rpartition(": ")[2] for out in done.outs] == ["before 1, after 3\n", "before 2, after 4\n"]
    assert done.errs[0] == ""
    assert done.errs[1].endswith("error: all_reduce gave 4, but the sum of 1 to 2 is 3\n")
