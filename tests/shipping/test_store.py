"""What a node keeps of environments, and what it removes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher.agent.environment.store import Store
from tests.shipping import environments

if TYPE_CHECKING:
    from pathlib import Path


def test_nothing_is_removed_in_vain_while_another_run_makes_an_environment(tmp_path: Path) -> None:
    """What an environment shares with others, and with the one that is being made, cannot be told then."""
    store = Store(str(tmp_path / "store"))
    for name in ("first", "second"):
        source = environments.venv(tmp_path / name)
        (source / "large.bin").write_bytes(name.encode() * 100_000)
        part = environments.start(tmp_path, source, [0], 1, dirs={0: tmp_path / "store"})[0]
        os.close(store.use(part.result()["digest"]))

    with store.making("0" * 64):
        during = store.prune(1)
    after = store.prune(1)

    assert during == []
    assert after == [str(tmp_path / "first"), str(tmp_path / "second")]
    assert store.size() == 0
