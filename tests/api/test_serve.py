"""Pages that a program serves: nothing is printed."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING, Any

import distlaunch
from launcher import output
from launcher.service import metrics

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_metrics_of_a_cluster_that_warns_print_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recent = metrics.recent

    def warns(directory: Path) -> Any:
        output.warn("sacct is silent")
        return recent(directory)

    monkeypatch.setattr(metrics, "recent", warns)
    with distlaunch.serve() as url:
        base, _, query = url.partition("?")
        bearer = {"Authorization": f"Bearer {query.removeprefix('token=')}"}
        request = urllib.request.Request(f"{base}metrics", headers=bearer)
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert "# EOF" in answer.read().decode()

    assert capfd.readouterr() == ("", "")
