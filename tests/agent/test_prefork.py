"""The fork server that is forked from a running Python: when there is one, and that it ends with its agent."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.harness import Runner

BEGIN = """
import atexit, os, sys, threading
from launcher.agent.forkserver import forks, prefork
"""
PLAIN = "prefork.fork(['OMP_NUM_THREADS', 'DISTLAUNCH_RUN_ID'], ['train.py', '--lr', '1'])"
CASES = {
    "plain": ("", PLAIN, True),
    "a variable that Python reads": ("", "prefork.fork(['PYTHONHASHSEED'], ['train.py'])", False),
    "a library path": ("", "prefork.fork(['LD_LIBRARY_PATH'], ['train.py'])", False),
    "an exit hook": ("atexit.register(print, end='')", PLAIN, False),
    "a thread": ("threading.Thread(target=threading.Event().wait, args=(1,)).start()", PLAIN, False),
    "no room for the command in ps": ("", "prefork.fork([], ['train.py', 'x' * 10_000])", False),
}


def run(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-u", *options, "-c", BEGIN + code]
    return subprocess.run(argv, timeout=60, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


def expect(asked: str) -> str:
    return f"found = {asked}\nprint(found is not None)\nif found: found.process.kill()\n"


@pytest.mark.parametrize("case", CASES)
def test_it_is_forked_only_where_a_script_cannot_notice(case: str) -> None:
    before, asked, there = CASES[case]

    done = run(f"{before}\n{expect(asked)}")

    assert (done.stdout, done.stderr) == (f"{there}\n", "")


def test_it_is_not_forked_from_a_python_with_options() -> None:
    assert run(expect(PLAIN), "-X", "utf8").stdout == "False\n"


@pytest.mark.parametrize(("variable", "starts"), [("A=1", 1), ("PYTHONNOUSERSITE=1", 2)])
def test_a_node_with_forked_workers_starts_python_once_or_for_a_fork_server_of_its_own(
    agents: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, starts: int
) -> None:
    counts = f"with open({str(tmp_path / 'starts')!r}, 'a') as file: file.write('started\\n')\n"
    (tmp_path / "sitecustomize.py").write_text(counts)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    run = agents("print('hello')\n", env=(variable,))

    assert (run.result(), bytes(run.stdout[0])) == ("success", b"hello\n")
    assert (tmp_path / "starts").read_text().count("started") == starts


@pytest.mark.parametrize(
    "word", ["found.channel.send({'quit': True})", "found.channel.close()", "found.process.kill()"]
)
def test_it_ends_with_an_agent_that_has_never_begun(word: str) -> None:
    """Its exit code is known, and nothing is printed about its end."""
    done = run(f"""
try:
    found = {PLAIN}
except forks.Child as child:
    task = child.task
else:
    {word}
    print(found.process.wait(20), found.process.wait(20))
    task = None
if task:
    task()
""")

    code = -9 if "kill" in word else 0
    assert (done.stdout, done.stderr) == (f"{code} {code}\n", "")
