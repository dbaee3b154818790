"""Doctor's last verdict about each host."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from launcher.errors import StorageError
from launcher.settings import verdicts
from tests.command import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.results.cluster import Verdict

OK: Verdict = {"time": 0, "run": "", "status": "ok", "findings": []}


@pytest.mark.parametrize("text", ['{"mars": {"n1": {}},', "[]", ""])
def test_a_file_that_cannot_be_read_is_an_error_and_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    file = tmp_path / "distlaunch/doctor.json"
    file.parent.mkdir()
    file.write_text(text)

    with pytest.raises(StorageError, match=f"{file} is damaged"):
        verdicts.note("juno", {"n1": OK}, env)

    assert file.read_text() == text
    assert verdicts.of("juno", env) == {}


def test_verdicts_of_several_commands_at_once_are_all_there(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    note = "import sys; from launcher.settings import verdicts; "
    note += f"[verdicts.note(sys.argv[1], {{str(each): {OK | {'time': time.time()}}}}, {env}) for each in range(5)]"
    commands = [subprocess.Popen([sys.executable, "-c", note, str(number)], cwd=ROOT) for number in range(4)]

    assert [command.wait() for command in commands] == [0] * 4
    assert [len(verdicts.of(str(number), env)) for number in range(4)] == [5] * 4
