"""Node 0's host is lost in silence: no connection breaks, and nothing answers any more. Nobody waits for TCP to give it up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from launcher.agent.job import Job
from launcher.agent.store import GoneError, Store
from launcher.agent.watch import Watch
from tests.testbed import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.agent.harness import Run, Runner

WAITS = """
import os, sys, time
print("up", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
raise ValueError("its own failure")
"""


@pytest.fixture
def silenced() -> Iterator[list[psutil.Process]]:
    """Processes that are stopped, until the test's end."""
    found: list[psutil.Process] = []
    yield found
    for process in found:
        process.kill()


def lose(run: Run, node: int, silenced: list[psutil.Process]) -> None:
    """Of its host nothing comes any more, and its connections stay."""
    agent = psutil.Process(run.agent_pid(node))
    for process in [agent, *agent.children(recursive=True)]:
        process.suspend()
        silenced.append(process)


@pytest.mark.parametrize("a_worker_fails", [False, True])
def test_the_others_end_when_node_0_is_silent(agents: Runner, silenced: list[psutil.Process], a_worker_fails: bool) -> None:
    go = agents.folder / "go"
    run = agents.start(WAITS, str(go), nodes="3", request={"peer_timeout_s": 3.0})
    run.until(lambda: len(run.stdout) == 3)

    lose(run, 0, silenced)
    if a_worker_fails:
        go.touch()
    run.until(lambda: len(run.of("done")) == 2)

    assert {done["result"] for done in run.of("done")} == {"failed"}
    silent = "node 0 has not answered for 3 s: its host or the network is gone"
    expected = "ValueError: its own failure" if a_worker_fails else silent
    assert {done["cause"]["message"] for done in run.of("done")} == {expected}


@pytest.mark.torch
def test_the_others_of_an_elastic_run_end_too(warm_agents: Runner, silenced: list[psutil.Process]) -> None:
    request = {"peer_timeout_s": 3.0, "replaces_lost": True}
    run = warm_agents.start(WAITS, str(warm_agents.folder / "go"), nodes="2:3", request=request)
    run.until(lambda: len(run.stdout) == 3)

    lose(run, 0, silenced)
    run.until(lambda: len(run.of("done")) == 2)

    assert {(done["result"], done["cause"]["message"]) for done in run.of("done")} == {
        ("lost", "node 0 has not answered for 3 s: its host or the network is gone")
    }


class OneWord(Store):
    """A store with the word of round 0 alone; notes how often it was looked for."""

    def __init__(self) -> None:
        self.looked = 0

    def _ask(self, call: str, *args: Any) -> Any:
        if call == "check":
            self.looked += 1
            return "".join(args[0]) == "round/0/word"  # without a comparison of the key itself
        return [json.dumps({"kind": "restart", "node": 1})] if call == "get" else 0


class Key(str):
    """A key: when it is compared, the next round begins before the result is used."""

    __slots__ = ("then",)
    then: Callable[[], None] | None

    def __eq__(self, other: object) -> bool:
        equal = str.__eq__(self, other)
        then, self.then = getattr(self, "then", None), None
        if then:
            then()
        return equal

    __hash__ = str.__hash__


def test_a_word_of_the_round_before_is_never_one_of_the_present() -> None:
    store = OneWord()
    job = Job("r-1", ["x.py"], "script", "/", {}, "/", {}, min_nodes=2, max_nodes=2)
    watch = Watch(job, 0, store, store)
    key = Key("round/0/word")
    key.then = lambda: watch.begin("round/1/word", watch_beats=False)
    watch.begin(key, watch_beats=False)
    looked = store.looked
    wait_until("the word", lambda: store.looked > looked + 4)

    watch.begin("round/1/word", watch_beats=False)

    assert watch.word is None


class Broken(Store):
    """A store that is gone."""

    def _ask(self, call: str, *args: Any) -> Any:
        raise GoneError(f"{call} {args}")

    def leave(self, key: str, value: str) -> None:
        """Nothing is left there any more."""


def test_that_node_0_is_lost_is_known_in_the_next_round_too() -> None:
    job = Job("r-1", ["x.py"], "script", "/", {}, "/", {}, min_nodes=2, max_nodes=2)
    watch = Watch(job, 1, Broken(), Broken())
    wait_until("the loss", lambda: watch.word)

    watch.begin("round/1/word", watch_beats=False)

    assert watch.word is not None
    assert (watch.word["kind"], watch.word["node"]) == ("lost", 0)
