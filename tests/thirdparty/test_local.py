"""Each of the public's scripts with two workers on this host: under torchrun, and under `distlaunch local`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.thirdparty import running
from tests.thirdparty.catalog import SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.command import Cli
    from tests.thirdparty.environment import Environment
    from tests.thirdparty.running import Digits
    from tests.thirdparty.script import Script

pytestmark = [pytest.mark.torch, pytest.mark.timeout(2000)]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_results_are_those_under_torchrun(
    script: Script, environment: Environment, reference: Callable[[Script], Digits], distlaunch: Cli, tmp_path: Path
) -> None:
    wanted = reference(script)
    directory = running.prepare(script, environment, tmp_path / "local")
    env: dict[str, str | None] = {**running.variables(script, environment, directory), "PYTHONPATH": None}
    argv = ("local", f"--nproc-per-node={running.WORKERS}", "--log-ranks=all", f"--python={environment.python}")

    done = distlaunch(*argv, *running.words(script, environment), cwd=directory, env=env, timeout_s=running.LIMIT_S)

    text = running.shown(done.stdout, done.stderr)
    assert done.exit_code == 0, done.stderr
    assert running.collect(script, directory, text) == wanted
