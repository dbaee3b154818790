"""The examples of docs/api.md run as they are printed, one after the other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import distlaunch
from tests.pages import page

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_examples_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "work.py").rename(here / "train.py")
    blocks = re.findall(r"^```python\n(.*?)^```", page("docs/api.md"), re.MULTILINE | re.DOTALL)
    code = "\n".join(blocks)
    (here / "examples.py").write_text(code)
    names: dict[str, Any] = {"__name__": "examples"}

    exec(compile(code, str(here / "examples.py"), "exec"), names)

    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("success ")
    assert said[-1] == "15"
    assert {"now running", "now success", "0 rank 0", "1 rank 1"} <= set(said)
    assert all(run.wait(120).ok for run in distlaunch.runs())
    assert len(distlaunch.runs()) == len(re.findall(r"\.submit\(|\.call\(", code)) == 4
