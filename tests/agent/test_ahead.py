"""The agent that is started while the launcher is still being imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.agent.ahead import (
    CAPTURED,
    SHOWS,
    START,
    ended,
    hooked,
    like,
    the_one_ahead,
    until_ended,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.command import Cli


def test_it_becomes_the_agent_and_nothing_of_its_start_is_left(
    distlaunch: Cli, tmp_path: Path, started: Callable[[], list[tuple[int, str]]]
) -> None:
    script = tmp_path / "shows.py"
    script.write_text(SHOWS)
    inherited = os.open(tmp_path / "inherited", os.O_RDWR | os.O_CREAT)
    try:
        usual, ahead = (
            json.loads(distlaunch("local", *words, env=hooked(distlaunch), pass_fds=(inherited,), real=True).stdout)
            for words in (
                ["--contract", "env", "--python", sys.executable, str(script)],
                ["--contract", "env", str(script)],
            )
        )
    finally:
        os.close(inherited)

    assert ahead["agent"] == ahead["group"] == ahead["session"] == the_one_ahead(started())
    assert not any("--spec" in words and "--when-told" not in words for _, words in started())
    assert ahead["argv"] == [word for word in like(ahead, usual)["argv"] if word != "--when-told"]
    assert [ahead["fds"][name] for name in "012"] == [like(ahead, usual)["fds"][name] for name in "012"]
    assert str(tmp_path / "inherited") not in {*ahead["fds"].values(), *usual["fds"].values()}
    for what in ("cwd", "env", "state", "limits", "modules"):
        assert ahead[what] == usual[what]


def test_one_without_room_for_the_command_line_is_not_taken(
    distlaunch: Cli, tmp_path: Path, started: Callable[[], list[tuple[int, str]]]
) -> None:
    (tmp_path / "script.py").write_text("import os; print(os.getppid())")
    runs = str(tmp_path.joinpath(*["d" * 200] * 6))

    done = distlaunch(
        "local", "--contract", "env", "script.py", env={**hooked(distlaunch), "DISTLAUNCH_RUNS_DIR": runs}, real=True
    )

    assert done.exit_code == 0, done.stderr
    assert ended(the_one_ahead(started()))
    assert [words for _, words in started() if "--spec" in words]


OTHERS = {
    "an error": (("local", "missing.py"), 2),
    "another Python": (("local", "--contract", "env", "script.py"), 0),
}


@pytest.mark.parametrize("case", OTHERS)
def test_it_is_gone_when_the_run_needs_another_one_or_none(
    distlaunch: Cli, tmp_path: Path, started: Callable[[], list[tuple[int, str]]], case: str
) -> None:
    (tmp_path / "script.py").write_text("import os; print(os.getppid())")
    if case == "another Python":
        wrapper = tmp_path / "python"
        wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        wrapper.chmod(0o755)
        (tmp_path / "distlaunch.toml").write_text(f"[defaults]\npython = {str(wrapper)!r}\n")
    words, code = OTHERS[case]

    done = distlaunch(*words, env=hooked(distlaunch), real=True)

    ahead = the_one_ahead(started())
    assert (done.exit_code, ended(ahead)) == (code, True), done.stderr
    assert code or int(done.stdout) != ahead


def test_it_ends_with_a_launcher_that_is_killed_before_it_knows_the_run(
    distlaunch: Cli,
    started: Callable[[], list[tuple[int, str]]],
) -> None:
    pid = "ahead._started[-1].process.pid"
    code = f"import os, signal; {START}; print({pid}); os.kill(os.getpid(), signal.SIGKILL)"

    done = subprocess.run([sys.executable, "-c", code], env=distlaunch.env(hooked(distlaunch)), **CAPTURED)

    assert done.returncode == -signal.SIGKILL
    until_ended(int(done.stdout))


@pytest.mark.parametrize("closed", ["0<&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_streams_are_no_pipes_of_it(
    distlaunch: Cli, tmp_path: Path, started: Callable[[], list[tuple[int, str]]], closed: str
) -> None:
    (tmp_path / "script.py").write_text("import sys; print('read', repr(sys.stdin.read()))")
    command = f"{sys.executable} -m launcher local --contract env script.py {closed}"

    subprocess.run(["sh", "-c", command], env=distlaunch.env(hooked(distlaunch)), cwd=tmp_path, check=True, timeout=60)

    assert not [words for _, words in started() if " --ahead " in words]
    (log,) = distlaunch.runs.glob("script-*/nodes/0/stream")
    assert b"read ''" in log.read_bytes()


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(
    "change", ["os.environ['MORE'] = '1'", "os.kill(ahead._started[-1].process.pid, 9); time.sleep(0.3)"]
)
def test_another_one_is_started_if_it_has_died_or_has_another_environment(
    distlaunch: Cli, tmp_path: Path, started: Callable[[], list[tuple[int, str]]], change: str, nodes: int
) -> None:
    (tmp_path / "script.py").write_text("import os; print(os.getppid(), os.environ.get('MORE'))")
    code = f"""
import os, sys, time
from launcher.backends.local import ahead
name = {"fork" if nodes > 1 and "kill" in change else "can_fork" if nodes > 1 else "take"!r}
usual = getattr(ahead, name)
def changed(*args, **more):
    {change}
    return usual(*args, **more)
setattr(ahead, name, changed)
from launcher.cli import main
sys.exit(main())
"""
    shape = ["--nodes", str(nodes), "--contract", "env"]
    command = [sys.executable, "-c", code, "local", *shape, "script.py"]

    done = subprocess.run(command, env=distlaunch.env(hooked(distlaunch)), cwd=tmp_path, **CAPTURED)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == ("1" if "MORE" in change else "None")
    begun = [words for _, words in started()]
    one_by_one = 0 if nodes > 1 and "MORE" in change else nodes
    assert sum("--spec" in words for words in begun) == one_by_one, begun
    assert sum(" --ahead " in words for words in begun) == (1 if one_by_one else 2)


def test_a_changed_archive_is_not_taken_for_that_of_the_run(
    distlaunch: Cli, tmp_path: Path, started: Callable[[], list[tuple[int, str]]]
) -> None:
    (tmp_path / "script.py").write_text("import os; print(os.getppid())")
    code = """
import os, sys
from launcher import payload
from launcher.backends.local import ahead
usual = ahead.take
def changed(*args):
    os.utime(payload.kept_agent())
    return usual(*args)
ahead.take = changed
from launcher.cli import main
sys.exit(main())
"""
    command = [sys.executable, "-c", code, "local", "--contract", "env", "script.py"]

    done = subprocess.run(command, env=distlaunch.env(hooked(distlaunch)), cwd=tmp_path, **CAPTURED)

    assert int(done.stdout) != the_one_ahead(started()), done.stderr
