"""A command with `--warm` has its agent prepared by what stands, while the launcher is still being imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from launcher.agent.system import trust
from launcher.agent.warm import asking, records
from tests.agent.harness import all_exited
from tests.command import Cli
from tests.warm.conftest import TORCH, left_by, start_of

if TYPE_CHECKING:
    from tests.warm.conftest import Warm

pytestmark = pytest.mark.torch

LIMIT_S = 20


@pytest.fixture
def command(warm: Warm, tmp_path: Path) -> Cli:
    """The command line, in new interpreters; what it leaves standing ends with the test."""
    (tmp_path / "train.py").write_text(TORCH)
    return Cli(tmp_path)


def run(command: Cli, *words: str, script: str = "train.py") -> tuple[int, str]:
    """A command's exit code, and what it has said."""
    env: dict[str, str | None] = {records.DIRECTORY: os.environ[records.DIRECTORY]}
    done = command("local", "--warm", "10m", *words, script, env=env, real=True)
    return done.exit_code, done.stdout + done.stderr


def prepared_by(server: int) -> list[int]:
    """The processes that it has forked and that have not ended."""
    found = [child for child in psutil.Process(server).children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child.pid for child in found]


def none_is_left_by(server: int) -> bool:
    """Whether all of those end."""
    limit = time.monotonic() + LIMIT_S
    while prepared_by(server) and time.monotonic() < limit:
        time.sleep(0.02)
    return not prepared_by(server)


def test_the_agent_is_older_than_its_run(command: Cli) -> None:
    assert run(command)[0] == 0
    (standing,) = records.found()

    code, said = run(command)

    assert (code, "1.0" in said) == (0, True), said
    (again,) = records.found()
    assert (again.pid, again.runs) == (standing.pid, 1)
    latest = max(command.runs.glob("train-2*"), key=lambda path: path.stat().st_mtime)
    ticks = json.loads((latest / "run.json").read_text())["handle"]["agents"][0]["start_ticks"]
    began = psutil.boot_time() + ticks / os.sysconf("SC_CLK_TCK")
    assert began < json.loads((latest / "run.json").read_text())["created"] - 0.01
    assert none_is_left_by(standing.pid)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_closed_stream_is_not_taken_for_the_connection(command: Cli, closed: str) -> None:
    assert run(command)[0] == 0

    for _ in range(2):
        script = f'exec "$0" -m launcher local --warm 10m train.py {closed}'
        env = command.env({records.DIRECTORY: os.environ[records.DIRECTORY]})
        done = subprocess.run(["sh", "-c", script, sys.executable], cwd=command.directory, env=env, check=False)
        assert done.returncode == 0

    assert [each.runs for each in records.found()] == [2]


@pytest.mark.parametrize(
    ("words", "script"), [((), "nowhere.py"), (("--nodes", "none"), "train.py"), (("--dry-run",), "train.py")]
)
def test_a_command_that_starts_nothing_leaves_none(
    command: Cli, warm: Warm, words: tuple[str, ...], script: str
) -> None:
    server = left_by(warm(TORCH))

    code, said = run(command, *words, script=script)

    assert code == (0 if words == ("--dry-run",) else 2), said
    assert none_is_left_by(server)
    assert start_of(warm(TORCH)) == (True, None)


def test_one_that_was_killed_or_has_waited_too_long_is_replaced(warm: Warm, tmp_path: Path) -> None:
    first = warm(TORCH)
    server = left_by(first)
    called = asking.call(sys.executable)
    assert called
    while not (waiting := prepared_by(server)):
        time.sleep(0.01)
    os.kill(waiting[0], signal.SIGKILL)
    assert none_is_left_by(server)
    path = str(first.directory / "agent.pyz")
    argv = [sys.executable, "-u", path, "--spec", str(first.directory / "spec.json"), "--node-rank", "0"]
    agent = trust.agent_name(Path(path).read_bytes())

    with (tmp_path / "out").open("w") as out:
        request = asking.Request(agent, argv, os.environ, str(tmp_path))
        found, reason = asking.ask(request, (out.fileno(), out.fileno()), called)

    assert found, reason
    found.close()
    assert all_exited(found.pid)


def test_several_agents_are_all_started_from_it(command: Cli) -> None:
    """Only the first is prepared ahead."""
    words = ("--nodes", "2", "--log-ranks", "all")
    assert run(command, *words)[0] == 0

    code, said = run(command, *words)

    assert (code, said.count("] 1.0")) == (0, 2), said
    assert sum(each.runs for each in records.found()) == 2


def test_the_right_one_is_found_though_another_one_was_used_last(command: Cli) -> None:
    for words in ((), ("--preload", "json"), ("--preload", "json")):
        assert run(command, *words)[0] == 0

    assert run(command)[0] == 0

    standing = records.found()
    assert [each.runs for each in standing] == [1, 1]
    assert all(none_is_left_by(each.pid) for each in standing)
