"""Each of the public's scripts with `distlaunch torchrun` in place of torchrun."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.thirdparty import running
from tests.thirdparty.catalog import SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.thirdparty.environment import Environment
    from tests.thirdparty.running import Digits
    from tests.thirdparty.script import Script

pytestmark = [pytest.mark.torch, pytest.mark.timeout(2000)]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_results_are_the_same(
    script: Script, environment: Environment, reference: Callable[[Script], Digits], tmp_path: Path
) -> None:
    wanted = reference(script)
    launcher = (str(environment.python), "-m", "launcher", "torchrun")

    assert running.torchrun(script, environment, tmp_path / "ours", launcher) == wanted


@pytest.mark.parametrize("script", [each for each in SCRIPTS if each.each_host_speaks], ids=lambda script: script.name)
def test_results_are_the_same_when_started_once_per_node(
    script: Script, environment: Environment, reference: Callable[[Script, int], Digits], tmp_path: Path
) -> None:
    wanted = reference(script, running.WORKERS)
    launcher = (str(environment.python), "-m", "launcher", "torchrun")

    assert running.torchrun(script, environment, tmp_path / "ours", launcher, nodes=running.WORKERS) == wanted
