"""Where the runs that are started from a standing server look for modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from launcher.agent.warm import records
from tests.warm.conftest import left_by, start_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.harness import Run
    from tests.warm.conftest import Warm

pytestmark = pytest.mark.torch


def test_a_relative_search_path_means_the_run_s_own_directory(warm: Warm, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "__pycache__").mkdir(parents=True)  # not by a worker: the directory would have changed
        (tmp_path / name / "mine.py").write_text(f"NAME = {name!r}\n")
    script = tmp_path / "uses.py"
    script.write_text("import torch\nimport mine\nprint(mine.NAME)\n")

    def start(name: str) -> Run:
        return warm(script, env=("PYTHONPATH=.",), cwd=tmp_path / name)

    servers = [left_by(start("one")), left_by(start("two"))]
    runs = [start("one"), start("two")]

    assert [run.stdout[0] for run in runs] == [b"one\n", b"two\n"]
    assert [start_of(run) for run in runs] == [(True, None)] * 2
    assert {each.pid for each in records.found()} == set(servers)
