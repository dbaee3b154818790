"""The agent that is started while the launcher is still being imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.system import processes
from tests.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.command import Cli

STARTS = """
import os, sys
with open(os.environ["STARTS"], "a") as file:
    file.write(f"{os.getpid()} {' '.join(sys.orig_argv)!r}\\n")
"""
SHOWS = """
import json, os, sys
modules = sorted(sys.modules)
with open(f"/proc/{os.getppid()}/status") as file:
    agent = next(int(line.split()[1]) for line in file if line.startswith("PPid"))  # beyond the worker group's process
about = {"agent": agent, "group": os.getpgid(agent), "session": os.getsid(agent)}
with open(f"/proc/{agent}/cmdline", "rb") as file:
    about["argv"] = file.read().rstrip(b"\\0").decode().split("\\0")
with open(f"/proc/{agent}/environ", "rb") as file:
    about["env"] = file.read().decode()
about["fds"] = {
    fd: os.readlink(f"/proc/{agent}/fd/{fd}").partition(":")[0] for fd in os.listdir(f"/proc/{agent}/fd")
}
with open(f"/proc/{agent}/status") as file:
    about["state"] = [line for line in file if line.startswith(("Sig", "Umask", "NoNewPrivs", "Cpus_allowed"))]
    about["state"] = [line for line in about["state"] if not line.startswith("SigQ")]
with open(f"/proc/{agent}/limits") as file:
    about["limits"] = file.read()
about["modules"] = modules
about["cwd"] = os.readlink(f"/proc/{agent}/cwd")
print(json.dumps(about))
"""
CAPTURED: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60}
START = "from launcher.backends.local import agent_ahead; agent_ahead.start([])"


@pytest.fixture(scope="module")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Python's bytecode is, and the packed agent: other tests change that of all."""
    return tmp_path_factory.mktemp("bytecode")


@pytest.fixture
def started(
    distlaunch: Cli, tmp_path: Path, bytecode: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[tuple[int, str]]]:
    """The Pythons that commands have started: their pids and command lines."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(bytecode))
    done = distlaunch("local", "--contract", "env", "--no-python", "true", real=True)  # packs the agent, if it is not
    assert done.exit_code == 0, done.stderr
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "sitecustomize.py").write_text(STARTS)
    monkeypatch.setenv("STARTS", str(tmp_path / "starts"))

    def read() -> list[tuple[int, str]]:
        lines = (tmp_path / "starts").read_text().splitlines()
        return [(int(pid), words) for pid, _, words in (line.partition(" ") for line in lines)]

    return read


def hooked(distlaunch: Cli) -> dict[str, str | None]:
    """With the module that notes all starts of Python."""
    return {"PYTHONPATH": os.pathsep.join((str(distlaunch.directory / "hooks"), str(ROOT)))}


def ended(pid: int) -> bool:
    return processes.start_ticks(pid) is None


def until_ended(pid: int) -> None:
    limit = time.monotonic() + 20
    while not ended(pid):
        assert time.monotonic() < limit, Path(f"/proc/{pid}/cmdline").read_bytes()
        time.sleep(0.02)


def the_one_ahead(started: list[tuple[int, str]]) -> int:
    (pid,) = [pid for pid, words in started if " --ahead " in words]
    return pid


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


def test_the_agents_of_several_nodes_are_its_forks_and_no_different(
    distlaunch: Cli, tmp_path: Path, started: Callable[[], list[tuple[int, str]]]
) -> None:
    script = tmp_path / "shows.py"
    script.write_text(SHOWS)
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)

    def run(*words: str) -> list[dict[str, Any]]:
        shape = ("--nodes", "3", "--contract", "env", "--log-ranks", "all")
        done = distlaunch("local", *shape, *words, str(script), env=hooked(distlaunch), real=True)
        assert done.exit_code == 0, done.stderr
        told = [line.partition("] ")[2] for line in done.stdout.splitlines()]
        return sorted(map(json.loads, told), key=node_of)

    forked = run()
    pythons = [words for _, words in started() if "--fork-server" not in words]
    usual = run("--python", str(wrapper))

    assert list(map(node_of, forked)) == [0, 1, 2]
    assert len({about["agent"] for about in forked}) == 3
    assert len([words for words in pythons if " --ahead " in words]) == 1
    assert not [words for words in pythons if "--spec" in words]
    for own, other in zip(forked, usual, strict=True):
        assert own["agent"] == own["group"] == own["session"] != the_one_ahead(started()[:3])
        alike = like(own, other)
        assert own["argv"][1:] == [word for word in alike["argv"][1:] if word != "--when-told"]
        assert [own["fds"][name] for name in "012"] == [alike["fds"][name] for name in "012"]
        assert set(own["fds"].values()) == set(alike["fds"].values())
        for what in ("cwd", "state", "limits", "modules"):
            assert own[what] == other[what], what
        assert _names(own) == _names(other)


def node_of(about: dict[str, Any]) -> int:
    return int(about["argv"][about["argv"].index("--node-rank") + 1])


def _names(about: dict[str, Any]) -> set[str]:
    """The variables of the agent; a shell sets some."""
    return {pair.partition("=")[0] for pair in about["env"].split("\0")} - {"PWD", "OLDPWD", "SHLVL", "_"}


@pytest.mark.parametrize("at", ["record", "answer"])
def test_no_fork_becomes_an_agent_if_the_launcher_ends_before_all_are_recorded(
    distlaunch: Cli, tmp_path: Path, started: Callable[[], list[tuple[int, str]]], at: str
) -> None:
    (tmp_path / "script.py").write_text("print('runs')")
    code = f"""
import json, os, signal, sys
from launcher.backends.local import agent_ahead
from launcher.system import proc
usual = {{"record": proc.Identity, "answer": agent_ahead._answer}}
def fork(*args, **more):
    def answer(line):
        pids = usual["answer"](line)
        print(json.dumps(pids), flush=True)
        if {at!r} == "answer":
            os.kill(os.getpid(), signal.SIGKILL)
        return pids
    agent_ahead._answer = answer
    words, note = args
    def record(found):
        note(found)
        if {at!r} == "record":
            os.kill(os.getpid(), signal.SIGKILL)
    return really(words, record, **more)
really, agent_ahead.fork = agent_ahead.fork, fork
from launcher.cli import main
sys.exit(main())
"""
    command = [sys.executable, "-c", code, "local", "--nodes", "3", "--contract", "env", "script.py"]

    done = subprocess.run(command, env=distlaunch.env(hooked(distlaunch)), cwd=tmp_path, **CAPTURED)

    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = json.loads(done.stdout)
    assert len(pids) == 3
    for pid in (*pids, the_one_ahead(started())):
        until_ended(pid)
    assert not list(distlaunch.runs.glob("script-*/nodes/*/agent.json"))


def test_a_process_that_cannot_fork_is_one_error(
    distlaunch: Cli, tmp_path: Path, started: Callable[[], list[tuple[int, str]]]
) -> None:
    (tmp_path / "script.py").write_text("print('runs')")
    code = """
import subprocess, sys
from launcher.backends.local import agent_ahead
usual = subprocess.Popen
def spawned(argv, *args, **more):
    if "--ahead" in argv:
        argv = [sys.executable, "-c", "input(); print('\\"Resource temporarily unavailable\\"', flush=True)"]
    return usual(argv, *args, **more)
agent_ahead.subprocess.Popen = spawned
from launcher.cli import main
sys.exit(main())
"""
    command = [sys.executable, "-c", code, "local", "--nodes", "3", "--contract", "env", "script.py"]

    done = subprocess.run(command, env=distlaunch.env(hooked(distlaunch)), cwd=tmp_path, **CAPTURED)

    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert "agents cannot be started: Resource temporarily unavailable" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [words for _, words in started() if "--spec" in words]


def like(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The other, with the names of the one's run and scratch directory."""
    text = json.dumps(other)
    for kind in (lambda about: Path(about["argv"][4]).parent.name, scratch):
        text = text.replace(kind(other), kind(one))
    found: dict[str, Any] = json.loads(text)
    return found


def scratch(about: dict[str, Any]) -> str:
    (path,) = {str(Path(path).parent) for path in about["fds"].values() if path.endswith("/crash")}
    return path


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
    pid = "agent_ahead._started[-1].process.pid"
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
    "change", ["os.environ['MORE'] = '1'", "os.kill(agent_ahead._started[-1].process.pid, 9); time.sleep(0.3)"]
)
def test_another_one_is_started_if_it_has_died_or_has_another_environment(
    distlaunch: Cli, tmp_path: Path, started: Callable[[], list[tuple[int, str]]], change: str, nodes: int
) -> None:
    (tmp_path / "script.py").write_text("import os; print(os.getppid(), os.environ.get('MORE'))")
    code = f"""
import os, sys, time
from launcher.backends.local import agent_ahead
name = {"fork" if nodes > 1 and "kill" in change else "can_fork" if nodes > 1 else "take"!r}
usual = getattr(agent_ahead, name)
def changed(*args, **more):
    {change}
    return usual(*args, **more)
setattr(agent_ahead, name, changed)
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
from launcher.backends.local import agent_ahead
usual = agent_ahead.take
def changed(*args):
    os.utime(payload.kept_agent())
    return usual(*args)
agent_ahead.take = changed
from launcher.cli import main
sys.exit(main())
"""
    command = [sys.executable, "-c", code, "local", "--contract", "env", "script.py"]

    done = subprocess.run(command, env=distlaunch.env(hooked(distlaunch)), cwd=tmp_path, **CAPTURED)

    assert int(done.stdout) != the_one_ahead(started()), done.stderr
