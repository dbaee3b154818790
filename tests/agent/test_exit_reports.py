"""How the end of an agent that has reported no result is reported by what is left of its node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent import channel
from launcher.agent.group import witness
from launcher.agent.group.agent_link import AgentLink
from tests.agent.harness import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.harness import Runner


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "its parent was first"])
@pytest.mark.parametrize(
    ("ends", "says", "crash", "kind", "sig", "said"),
    [
        ("exit 7", True, "", "node", None, "exited without reporting a result"),
        (
            "kill -SEGV $$",
            False,
            "Fatal Python error: Segmentation fault\n\n",
            "killed",
            "SIGSEGV",
            "was killed by SIGSEGV",
        ),
        ("kill -KILL $$", False, "", "killed", "SIGKILL", "was killed by SIGKILL"),
    ],
)
def test_an_agent_that_exited_without_a_result_is_reported_by_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, says: bool, crash: str, kind: str, sig: str | None,
    said: str, seen: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(witness, "_ENDS_S", LIMIT_S)
    (tmp_path / "crash").write_text(crash)
    with subprocess.Popen(["sh", "-c", f"read x; {ends}"], stdin=subprocess.PIPE) as process:
        about = {"node_rank": 1, "host": "h", "directory": "/", "agent": process.pid, "scratch": str(tmp_path)}
        found = witness.Witness(None, about)  # type: ignore[arg-type]
        assert process.stdin
        process.stdin.close()
        if not seen:
            process.wait()

        why = found._cause(says)

    code = ", exit code 7" if says and seen else ""
    assert (why["class"], why["signal"], why["message"]) == (kind, sig, f"the agent (pid {process.pid}) {said}{code}")


@pytest.mark.parametrize("fault", ["SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE"])
def test_an_agent_that_crashes_is_reported_by_its_signal_where_its_parent_waits_for_it(
    agents: Runner, fault: str
) -> None:
    run = agents.start("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    run.until(lambda: run.stdout[0])
    with ThreadPoolExecutor(1) as parent:
        ended = parent.submit(os.waitpid, run.agent_pid(), 0)

        os.kill(run.agent_pid(), signal.Signals[fault])

        assert os.WTERMSIG(ended.result()[1]) == signal.Signals[fault]
    run.until(lambda: run.failures(0))  # what is left of the node reports it a moment later
    run.wait()
    (cause,) = run.failures(0)
    assert (cause["class"], cause["signal"]) == ("killed", fault)


def test_an_agent_that_ends_by_itself_and_leaves_its_node_behind_is_not_called_killed() -> None:
    """Its parent may reap it before any other process can see how it ended."""
    heard: list[bool] = []
    for says in (False, True):
        agent: channel.Channel[Any, Any]
        mine: channel.Channel[Any, Any]
        agent, mine = channel.Channel.pair()
        child = os.fork()
        if child == 0:
            agent.close()
            AgentLink(mine, lambda ends: os._exit(40 + ends))
            signal.pause()
        mine.close()
        if says:
            agent.send({"ends": True})
        agent.close()
        heard.append(os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 41)
    assert heard == [False, True]


CANNOT_CONTINUE = """#!{python}
import os, runpy, signal, sys
import psutil
sys.argv = sys.argv[2:]  # after -u
sys.path.insert(0, sys.argv[0])
if "--node-rank" in sys.argv:
    from distlaunch_agent.node import agent as node
    turn = node.Node._turn
    def fails(self, *given):
        if not os.path.exists("works"):
            return turn(self, *given)
        if node.Node._end_processes is fails:
            left = psutil.Process().children(recursive=True)
            os.write(out, " ".join(str(process.pid) for process in left).encode())
            for process in left:
                process.suspend()
        node.Node._end_processes = fails
        raise MemoryError
    node.Node._turn = fails
    left, out = os.pipe()
    child = os.fork()
    if child:
        os.close(out)
        os.waitpid(child, 0)
        for pid in reversed(os.read(left, 1000).split()):  # the fork server last: it waits for the others, briefly
            os.kill(int(pid), signal.SIGCONT)
        sys.exit(1)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Its agents run out of memory once a worker runs, even to end it; their exit codes are reaped before they are read."""


def test_an_agent_that_fails_while_it_ends_is_reported_as_exited(agents: Runner) -> None:
    wrapper = agents.directory / "python"
    wrapper.write_text(CANNOT_CONTINUE.format(python=sys.executable))
    wrapper.chmod(0o755)

    run = agents.start(
        "import time\nopen('works', 'w').close()\nprint('works')\ntime.sleep(600)\n", python=str(wrapper)
    )
    run.until(lambda: run.failures(0))  # what is left of the node reports it when the agent has exited
    run.wait()

    cause = run.failures(0)[-1]
    assert (cause["class"], cause["signal"]) == ("node", None)
    assert cause["message"] == f"the agent (pid {run.of('agent_started')[0]['pid']}) exited without reporting a result"
