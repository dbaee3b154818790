"""A node is silent although its connections are up: it may be starved, and is waited for, but not for ever."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from launcher.agent.group import losses
from launcher.agent.group import watch as watch_module
from launcher.agent.group.watch import Watch
from launcher.agent.job import Job
from launcher.agent.network import ports
from launcher.agent.store.interface import GoneError, Store, StoreError
from launcher.agent.store.server import Server
from testbed import wait_until

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
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended with the one above it
            process.kill()


def starve(run: Run, node: int, silenced: list[psutil.Process]) -> None:
    """None of its processes sends anything any more, and its connections stay up."""
    for process in run.processes(node):
        process.suspend()
        silenced.append(process)


def all_warnings(run: Run) -> str:
    return "\n".join(run.warnings())


def of_node(run: Run, node: int) -> list[tuple[int, str]]:
    """What was reported of that node's silence and of its end, and by which node."""
    warnings = [(of, str(fields["message"])) for of, name, fields in run.events if name == "warning"]
    return [(of, text) for of, text in warnings if re.match(rf"(no sign of )?node {node} ", text)]


STARVED = (
    r"no sign of node {} for [1-9]\d* s, though its host answers: it may be starved of CPU or memory, or stopped(; .*)?"
)
LOST = (
    r"no sign of node {} for [1-9]\d* s \(--peer-timeout\), though its host answers: "
    r"it was starved of CPU or memory, or .*"
)


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_is_starved_is_missed_and_waited_for(
    agents: Runner, silenced: list[psutil.Process], node: int
) -> None:
    """For as long as a host that does not answer would be waited for, and longer."""
    go = agents.directory / "go"
    run = agents.start(WAITS, str(go), nodes="3", request={"host_timeout_s": 1.0})
    run.until(lambda: len(run.stdout) == 3)

    starve(run, node, silenced)
    run.until(lambda: re.search(STARVED.format(node), all_warnings(run)))
    for process in silenced:
        process.resume()
    silenced.clear()
    run.until(lambda: re.search(rf"node {node} responds again, after [1-9]\d* s", all_warnings(run)))
    assert run.of("done") == []
    go.touch()
    run.wait()

    assert {done["cause"]["message"] for done in run.of("done")} == {"ValueError: its own failure"}
    # The host may starve a node, too: each silence is reported once, by one node.
    told = of_node(run, node)
    silent = [text.startswith("no sign") for _, text in told]
    assert len({of for of, _ in told}) == 1, "by one node"
    assert silent == [number % 2 == 0 for number in range(len(silent))], "once"


@pytest.mark.parametrize("a_worker_fails", [False, True])
def test_the_others_end_when_node_0_is_silent(
    agents: Runner, silenced: list[psutil.Process], a_worker_fails: bool
) -> None:
    go = agents.directory / "go"
    run = agents.start(WAITS, str(go), nodes="3", peer_timeout="10s")
    run.until(lambda: len(run.stdout) == 3)

    starve(run, 0, silenced)
    if a_worker_fails:
        go.touch()
    run.until(lambda: len(run.of("done")) == 2)

    assert {done["result"] for done in run.of("done")} == {"failed"}
    expected = "ValueError: its own failure" if a_worker_fails else LOST.format(0)
    assert all(re.fullmatch(expected, done["cause"]["message"]) for done in run.of("done"))


@pytest.mark.torch
def test_the_other_nodes_of_an_elastic_run_end_too(warm_agents: Runner, silenced: list[psutil.Process]) -> None:
    request = {"peer_timeout_s": 10.0, "replaces_lost": True}
    run = warm_agents.start(WAITS, str(warm_agents.directory / "go"), nodes="2:3", request=request)
    run.until(lambda: len(run.stdout) == 3)

    starve(run, 0, silenced)
    run.until(lambda: len(run.of("done")) == 2)

    assert {done["result"] for done in run.of("done")} == {"lost"}
    assert all(re.fullmatch(LOST.format(0), done["cause"]["message"]) for done in run.of("done"))


@pytest.mark.torch
def test_an_elastic_run_waits_for_a_starved_node_and_finally_continues_without_it(
    warm_agents: Runner, silenced: list[psutil.Process]
) -> None:
    """Torch's own rendezvous would do so after 15 s; a killed node is noticed at once by its connection."""
    request = {"host_timeout_s": 1.0, "peer_timeout_s": 10.0, "last_call_s": 1.0}
    run = warm_agents.start(WAITS, str(warm_agents.directory / "go"), nodes="1:2", request=request)
    run.until(lambda: len(run.stdout) == 2 and len([met for met in run.of("rendezvous") if met["nodes"] == 2]) == 2)
    begun = len(run.of("rendezvous"))  # a node that was late has made the other begin again

    starve(run, 1, silenced)
    run.until(lambda: re.search(STARVED.format(1), all_warnings(run)))
    assert len(run.of("rendezvous")) == begun, "the round that all have begun with"
    run.until(lambda: re.search(LOST.format(1), all_warnings(run)))
    run.until(lambda: len(run.of("rendezvous")) == begun + 1)

    assert run.of("rendezvous")[-1]["nodes"] == 1


def ignore(_name: str, **_fields: Any) -> None:
    """Drop an event."""


class Ticking(Server):
    """A store whose waits take as long as they may, by a clock that only they move."""

    def __init__(self) -> None:
        super().__init__(ports.listening(only="127.0.0.1"), "k" * 32)
        self.clock = 0.0
        self.begins, self.over = threading.Event(), threading.Event()

    def wait(self, known: Any, limit_s: float, sign: tuple[str, str] = ("", "")) -> list[bytes | None]:
        """As long as it may take, at once."""
        self.begins.wait(60)
        if self.over.is_set():
            raise StoreError
        time.sleep(0.001)
        self.clock += 0.2
        return super().wait(known, 0.0, sign)


def test_a_node_that_was_starved_does_not_take_the_others_for_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    store, told = Ticking(), []
    clock = SimpleNamespace(monotonic=lambda: store.clock, time=time.time)
    for module in (watch_module, losses):
        monkeypatch.setattr(module, "time", clock)
    job = Job(
        "r-1", ["x.py"], "script", "/", {}, "/", {}, min_nodes=2, max_nodes=2, host_timeout_s=6.0, peer_timeout_s=20.0
    )
    store.set("name/1", "-")
    store.set("sign/1", "1 -")
    watch = Watch(job, 0, store, lambda _name, message: told.append((store.clock, message)))
    watch.begin("round/0/verdict", expects_signs=True)
    store.clock += 1000
    store.begins.set()
    wait_until("the loss", lambda: watch.verdict)
    store.over.set()

    assert 1004 < told[0][0] < 1010, told
    assert re.match(r"no sign of node 1 for [6-9] s, though its host answers: it may be starved", told[0][1])
    assert watch.verdict
    lost = watch.verdict["message"]
    assert re.match(r"no sign of node 1 for 2\d s \(--peer-timeout\), though its host answers: ", lost)


class OneMessage(Store):
    """A store with only the message of round 0; counts how often it was looked up, and waits for nothing."""

    def __init__(self) -> None:
        self.looked, self.over = 0, False

    def _ask(self, call: str, *args: Any) -> Any:
        if self.over:
            raise StoreError
        if call == "get":
            return [None for _ in args]
        if call != "wait":
            return 0
        self.looked += any(key.startswith("round") for key in args[1])
        return [
            json.dumps({"kind": "restart", "node": 1}) if "".join(key) == "round/0/verdict" else None for key in args[1]
        ]


@pytest.fixture
def one_message() -> Iterator[OneMessage]:
    """Such a store, until the test ends: then the thread that asks it again and again ends as well."""
    store = OneMessage()
    yield store
    store.over = True


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


def test_a_message_of_the_previous_round_is_never_taken_for_one_of_this_round(one_message: OneMessage) -> None:
    job = Job("r-1", ["x.py"], "script", "/", {}, "/", {}, min_nodes=2, max_nodes=2)
    watch = Watch(job, 0, one_message, ignore)
    key = Key("round/0/verdict")
    key.then = lambda: watch.begin("round/1/verdict", expects_signs=False)
    watch.begin(key, expects_signs=False)
    looked = one_message.looked
    wait_until("the lookups", lambda: one_message.looked > looked + 4)

    watch.begin("round/1/verdict", expects_signs=False)

    assert watch.verdict is None


def test_a_late_message_of_the_previous_round_hides_none_of_this_round(one_message: OneMessage) -> None:
    """Two threads of a node receive messages, and the one that waits for the next round may be first."""
    job = Job("r-1", ["x.py"], "script", "/", {}, "/", {}, min_nodes=2, max_nodes=2)
    watch = Watch(job, 0, one_message, ignore)
    wait_until("the restart", lambda: watch.verdict)
    watch.begin("round/1/verdict", expects_signs=False)

    watch.receive("round/1/verdict", {"kind": "fail", "node": 1})
    watch.learn({"round/0/verdict": b'{"kind": "restart", "node": 1}'})

    assert watch.verdict is not None
    assert watch.verdict["kind"] == "fail"


class Broken(Store):
    """A store whose server has exited."""

    def _ask(self, call: str, *args: Any) -> Any:
        raise GoneError(f"{call} {args}")

    def set(self, key: str, value: str | bytes) -> None:
        """Keeps nothing."""

    def leave(self, *_: str) -> None:
        """Leaves nothing."""


def test_the_loss_of_node_0_is_known_in_the_next_round_too() -> None:
    job = Job("r-1", ["x.py"], "script", "/", {}, "/", {}, min_nodes=2, max_nodes=2)
    watch = Watch(job, 1, Broken(), ignore)
    wait_until("the loss", lambda: watch.verdict)

    watch.begin("round/1/verdict", expects_signs=False)

    assert watch.verdict is not None
    assert (watch.verdict["kind"], watch.verdict["node"]) == ("lost", 0)
