"""The command that starts a run again."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from launcher.backends.slurm.options import SlurmOptions
from launcher.runs.records import Run
from launcher.service import launch, reproduce
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
    settings = {name: launch.recorded(item) for name, item in first.items()}
    given = {"script": "train.py", **{name: list(value) for name, value in flags.items()}}
    run = Run(id="run", path=tmp_path, backend="local", command=("train.py",), given=given, settings=settings)

    start, *words, script = shlex.split(reproduce.command(run))[1:]

    assert (start, script) == ("local", "train.py")
    assert set(words[::2]) == {"--env"}
    again = config.load(env, str(tmp_path)).resolve(JobOptions, flags={"env": tuple(words[1::2])})
    assert again["env"].value == first["env"].value


def test_the_command_has_no_setup_line_that_the_settings_files_add_again(tmp_path: Path) -> None:
    text = '[clusters.c]\nbackend = "slurm"\nsetup = ["set +u", ". a.sh", "set -u"]\n'
    (tmp_path / "distlaunch.toml").write_text(text)
    env = {"DISTLAUNCH_SYSTEM_CONFIG": "/none", "DISTLAUNCH_SETUP": "set +u"}

    def resolved(env: dict[str, str], flags: tuple[str, ...]) -> dict[str, config.Setting]:
        loaded = config.load(env, str(tmp_path))
        return loaded.resolve(SlurmOptions, flags={"setup": flags}, cluster=loaded.cluster("c", lambda _: SlurmOptions))

    first = resolved(env, (". b.sh", "set -u"))
    settings = {name: launch.recorded(item) for name, item in first.items()}
    run = Run(id="run", path=tmp_path, backend="slurm", cluster="c", command=("train.py",), settings=settings)
    _, _, on, cluster, *words, script = shlex.split(reproduce.command(run))

    assert (on, cluster, script) == ("--on", "c", "train.py")
    assert set(words[::2]) == {"--setup"}
    again = resolved({"DISTLAUNCH_SYSTEM_CONFIG": "/none"}, tuple(words[1::2]))
    assert again["setup"].value == first["setup"].value
    assert first["setup"].value == ("set +u", ". a.sh", "set -u", "set +u", ". b.sh", "set -u")
