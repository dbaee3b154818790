"""Signals to a run whose agents are about to begin, or have left no record of themselves."""

from __future__ import annotations

import json
import signal
import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import pytest

from launcher.agent.system import processes
from testbed import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.agent.harness import Run, Runner

SAVES = """
import signal, sys, time
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append("saved"))
print("up", flush=True)
while not asked:
    time.sleep(0.05)
print(*asked)
"""
"""It waits until it is told to save."""

STAND_IN = """\
#!/bin/sh
trap 'exit 9' USR1
while ! test -e {go}; do sleep 0.05; done
trap 'echo heard >> {heard}' USR1
read -r _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ ticks _ < /proc/$$/stat
printf '{{"pid": %s, "start_ticks": %s}}' $$ "$ticks" > {record}
while ! test -s {heard}; do sleep 0.05; done
"""
"""In place of an agent: until it has recorded itself, a signal ends it."""

WRAPPER = "#!/bin/sh\ntrap : USR1 TERM\n'{python}' \"$@\"\nexit $?\n"
"""It runs the agent as a child, and survives what it is sent."""


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def held_back(threads: ThreadPoolExecutor, run: Run) -> Future[None]:
    """A signal that is sent, with time enough to do harm."""
    sent = threads.submit(run.backend.signal, run.handle, signal.SIGUSR1)
    wait([sent], timeout=1.0)
    return sent


def test_a_signal_for_the_workers_ends_no_agent_that_has_not_begun(agents: Runner, threads: ThreadPoolExecutor) -> None:
    go = agents.directory / "go"
    waits = (
        f"#!/bin/sh\ntrap 'exit 9' USR1\nwhile ! test -e {go}; do sleep 0.05; done\n"
        f"trap '' USR1  # or it might end a worker that has no handler yet\nexec '{sys.executable}' \"$@\"\n"
    )
    started = agents.start(SAVES, python=program(agents.directory / "python", waits))

    sent = held_back(threads, started)
    go.touch()
    sent.result()
    started.until(lambda: started.stdout)
    started.backend.signal(started.handle, signal.SIGUSR1)  # the first one may have come before there were workers
    started.wait()

    assert started.result() == "success"
    assert started.stdout[0].startswith(b"up\nsaved")


def test_it_reaches_an_agent_that_begins_later(agents: Runner, threads: ThreadPoolExecutor) -> None:
    go, heard, record = (agents.directory / name for name in ("go", "heard", "run-0/nodes/0/agent.json"))
    stand_in = program(agents.directory / "python", STAND_IN.format(go=go, heard=heard, record=record))
    started = agents.start(SAVES, python=stand_in)

    sent = held_back(threads, started)
    assert not sent.done()
    go.touch()
    sent.result()

    wait_until("the signal", heard.exists)


@pytest.mark.parametrize("record", [None, "", json.dumps({"pid": 7, "start_ticks": 123})])
@pytest.mark.parametrize("wrapper", [None, WRAPPER], ids=["", "below a script"])
def test_it_reaches_an_agent_without_a_record_of_its_own(
    agents: Runner, record: str | None, wrapper: str | None
) -> None:
    """The disk was full when it began, or it has another pid in its own namespace."""
    python = program(agents.directory / "python", wrapper.format(python=sys.executable)) if wrapper else sys.executable
    started = agents.start(SAVES, python=python)
    started.until(lambda: started.stdout)
    path = started.directory / "nodes/0/agent.json"
    path.unlink()
    if record is not None:
        path.write_text(record)

    started.backend.signal(started.handle, signal.SIGUSR1)
    started.wait()

    assert (started.result(), bytes(started.stdout[0])) == ("success", b"up\nsaved\n")


def test_what_cleans_up_after_an_agent_is_sent_none(agents: Runner) -> None:
    """Its agent has ended, whose workers the signal was for."""
    go = agents.directory / "go"
    cleans = f"#!/bin/sh\ntrap 'exit 9' USR1\n'{sys.executable}' \"$@\"\nwhile ! test -e {go}; do sleep 0.05; done\n"
    cleans += f"touch {agents.directory}/clean\n"
    started = agents.start("print('up')\n", python=program(agents.directory / "python", cleans))
    started.until(lambda: started.of("done"))
    wait_until("the agent to end", lambda: not _alive(started))

    started.backend.signal(started.handle, signal.SIGUSR1)
    go.touch()

    wait_until("it to clean up", (agents.directory / "clean").exists)


def _alive(run: Run) -> bool:
    noted = json.loads((run.directory / "nodes/0/agent.json").read_text())
    return bool(processes.start_ticks(noted["pid"]) == noted["start_ticks"])
