"""The list of this machine's testbeds, which all checkouts share."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from testbed import packages, processes, registry
from testbed.registry import Record

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A list of its own."""
    if packages.why_no_hosts() or packages.missing(packages.NETWORK):
        pytest.skip("the testbed needs root")
    monkeypatch.setattr(registry, "STATE", tmp_path / "state")
    return tmp_path / "state"


@pytest.mark.parametrize(
    ("more", "stays"),
    [
        ({"color": "red"}, True),
        ({"color": "red", "start_ticks": 1}, False),
    ],
)
def test_a_testbed_of_another_version_is_removed_only_if_its_owner_is_dead(
    state: Path, more: dict[str, object], stays: bool
) -> None:
    ticks = processes.start_ticks(os.getpid())
    assert ticks
    record = Record(index=98, pid=os.getpid(), start_ticks=ticks, directory="/nowhere", own_directory=False)
    with registry.locked():
        registry.write(record)
        (state / "98/record.json").write_text(json.dumps({**asdict(record), **more}))
        registry.clean()

    assert (state / "98").exists() is stays
