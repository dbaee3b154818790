"""The command that starts a run again."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from launcher.runs.records import Run
from launcher.service import reproduce
from launcher.settings import config
from launcher.settings.options import JobOptions

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("flags", [{}, {"env": ("FLAG=1",)}])
@pytest.mark.parametrize("text", ["", '[defaults]\nenv = ["FILE=1"]\n'])
def test_the_command_has_what_a_variable_added_to_other_values(
    tmp_path: Path, flags: dict[str, tuple[str, ...]], text: str
) -> None:
    file = tmp_path / "distlaunch/config.toml"
    file.parent.mkdir()
    file.write_text(text)
    env = {"XDG_CONFIG_HOME": str(tmp_path), "DISTLAUNCH_SYSTEM_CONFIG": "/none"}
    first = config.load({**env, "DISTLAUNCH_ENV": "VARIABLE=1"}, str(tmp_path)).resolve(JobOptions, flags=flags)
    settings = {name: {"value": item.value, "source": item.source} for name, item in first.items()}
    given = {"script": "train.py", **{name: list(value) for name, value in flags.items()}}
    run = Run(id="run", path=tmp_path, backend="local", command=("train.py",), given=given, settings=settings)

    start, *words, script = shlex.split(reproduce.command(run))[1:]

    assert (start, script) == ("local", "train.py")
    assert set(words[::2]) == {"--env"}
    again = config.load(env, str(tmp_path)).resolve(JobOptions, flags={"env": tuple(words[1::2])})
    assert again["env"].value == first["env"].value
