"""The limit of login plugins, and what becomes of one that exceeds it."""

from __future__ import annotations

import logging
import subprocess
from typing import TYPE_CHECKING

import pytest

from launcher.backends import _kube_login as login
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


def test_a_plugin_that_does_not_end_is_ended_after_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "LIMIT_S", 0.5)
    monkeypatch.setattr(login, "_TELL_S", 0.1)
    ended = tmp_path / "ended"
    plugin = f"trap 'touch {ended}; exit' TERM; while :; do sleep 0.05; done"

    with pytest.raises(login.LoginError, match="it did not end within"):
        login.run(lambda: subprocess.run(["sh", "-c", plugin], check=False))

    wait_until("the plugin's end", ended.exists, limit_s=20)
    assert login.run(lambda: 5) == 5, "the next one has its turn"


def test_what_the_library_only_logs_is_raised_and_what_it_raises_comes_as_it_is() -> None:
    def logs() -> None:
        logging.getLogger().error("exec: you are\nnot logged in")

    def fails() -> None:
        raise ValueError("no such file")

    with pytest.raises(login.LoginError, match=r"^you are not logged in$"):
        login.run(logs)
    with pytest.raises(ValueError, match="no such file"):
        login.run(fails)
