"""Which dumps are of this round."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from launcher.agent.flight import recorder

if TYPE_CHECKING:
    from pathlib import Path


def test_a_clock_that_is_set_back_makes_only_dumps_stale_whose_names_the_user_chose(tmp_path: Path) -> None:
    for name in ("ours", "own"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank_0").write_text("x")
        os.utime(tmp_path / name / "rank_0", (0, time.time() - 3600))
    env = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/own/rank_"}

    found, chosen = (
        recorder.switched_on(given, (2, 11), str(tmp_path / "ours"), str(tmp_path), 0)[0] for given in ({}, env)
    )

    assert found is not None
    assert chosen is not None
    assert recorder.written(found, [0, 1]) == {0: f"{tmp_path}/ours/rank_0"}
    assert recorder.written(chosen, [0, 1]) == {}
