"""Programs that are started to outlive the launcher."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from launcher import proc
from launcher.errors import CommandError
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("said", ["libpython3.so: cannot open shared object file", "two lines\nthe second", ""])
def test_one_that_ends_before_it_is_told_to_begin_is_an_error_with_the_reason_that_it_wrote(tmp_path: Path, said: str) -> None:
    stderr = tmp_path / "stderr"
    stderr.write_text("of another attempt\n")

    def gone(identity: proc.Identity) -> None:
        wait_until("it to end", lambda: not identity.alive(), limit_s=60)

    argv = ["sh", "-c", f"printf '%s\\n' '{said}' >&2; exit 1"]
    with pytest.raises(CommandError) as raised:
        proc.start_detached(argv, cwd=str(tmp_path), env=os.environ, stdout=tmp_path / "out", stderr=stderr, record=gone)

    reason = said.splitlines()[-1] if said else ""
    assert raised.value.message == "sh ended as soon as it was started" + (f": {reason}" if reason else "")
    assert str(stderr) in (raised.value.hint or "")
