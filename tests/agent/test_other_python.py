"""What `scripts/matrix` asks the harness for: agents and workers under another Python than the tests."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests import matrix

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.agent.harness import Runner


def test_agents_run_under_the_python_that_is_asked_for(
    agents: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "another"
    python.write_text('#!/bin/sh\nANOTHER=1 exec "$REAL" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("REAL", sys.executable)
    monkeypatch.setenv(matrix.AGENT_PYTHON, str(python))

    run = agents("import os\nprint(os.environ['ANOTHER'])\n", env=("REAL",))

    assert run.stdout[0] == b"1\n"
