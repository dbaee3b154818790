"""The environments of the public's scripts, and their results under torchrun."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from testbed.errors import NotAvailableError
from tests.thirdparty import environment as environments
from tests.thirdparty import running
from tests.thirdparty.running import Digits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.thirdparty.environment import Environment
    from tests.thirdparty.script import Script


@pytest.fixture
def environment(script: Script) -> Environment:
    """The script's environment, made by the first test that needs it."""
    try:
        return environments.ready(script.packages)
    except NotAvailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def reference(
    environment: Environment, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> Callable[..., Digits]:
    """A script's results under torchrun, once for all tests of this run; torchrun is started here, or once per node."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base

    def digits(script: Script, nodes: int = 1) -> Digits:
        known = shared / f"torchrun-{nodes}-{script.name}.json"
        with environments.MAKER.locked(known.with_suffix(".lock"), f"run {script.name} under torchrun"):
            if not known.exists():
                found = running.torchrun(script, environment, tmp_path / "torchrun", nodes=nodes)
                new = tmp_path / "reference.json"
                new.write_text(found.to_json(), encoding="utf-8")
                new.replace(known)
        return Digits(**json.loads(known.read_text(encoding="utf-8")))

    return digits
