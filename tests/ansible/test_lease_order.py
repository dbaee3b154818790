"""The leases of many hosts: in one round trip if all are free, else in one order, so that one run gets all of its."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.lease.lease import Holder, Wish
from launcher.agent.lease.lock_files import LockFiles
from launcher.system import install

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOSTS = [f"n{number}" for number in range(5)]


class Hosts:
    """Directories in place of hosts, and the connections of one run to them, as `Asking` has them."""

    def __init__(self, top: Path, run: str) -> None:
        self.holders = {host: Holder(LockFiles(str(top / host))) for host in HOSTS}
        self.run, self.calls = run, Counter[str]()
        self.steps: list[tuple[str, list[str], int]] = []
        """What was asked of which hosts, and how many leases the run had then."""

    def each(self, step: str, hosts: list[str], work: Callable[[str], dict[str, Any]]) -> dict[str, dict[str, Any]]:
        answers = {host: work(host) for host in hosts}
        self.steps.append((step, hosts, sum(bool(holder.descriptors()) for holder in self.holders.values())))
        return answers

    def ask(self, host: str, request: dict[str, Any]) -> dict[str, Any]:
        self.calls[request["call"]] += 1
        time.sleep(random.uniform(0.0, 0.004))
        wish = Wish(self.run, request["workers"], request["env"])
        if request["call"] == "look":
            return self.holders[host].look(wish)
        wait_s = min(request["wait_s"], 0.05)
        return self.holders[host].take(wish, wait_s=wait_s, queue=request["queue"])

    def close(self) -> None:
        for holder in self.holders.values():
            holder.close()


@pytest.fixture
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Hosts, Any]]:
    """Makes what takes the leases of a run, and the hosts as it reaches them."""
    monkeypatch.syspath_prepend(str(install.data("playbooks") / "roles/distlaunch/plugin_utils"))
    monkeypatch.setenv("PATH", "/nowhere")  # no nvidia-smi: a lease is of a whole host
    from distlaunch_inventory import Target
    from distlaunch_lease import Leases

    (tmp_path / "job.json").write_text("{}")
    for host in HOSTS:
        (tmp_path / host).mkdir()
    unused: dict[str, Any] = dict.fromkeys(Target._fields)
    target = Target(**{**unused, "workers": "1"})

    def make(run: str, mode: str = "refuse") -> tuple[Hosts, Any]:
        hosts = Hosts(tmp_path, run)
        args = {"run": run, "job": str(tmp_path / "job.json"), "lease": mode, "wait_s": 30.0}
        return hosts, Leases(hosts, args, dict.fromkeys(HOSTS, target))  # type: ignore[arg-type]

    return make


def facts() -> dict[str, dict[str, Any]]:
    return {host: {"machine": [host, 1], "directory": f"/runs/{host}"} for host in HOSTS}


def chooses(count: int) -> Callable[[dict[str, Any]], dict[str, Any] | None]:
    """A choice of so many hosts, if they are there: the last ones, as in an inventory of another order."""

    def choose(found: dict[str, Any]) -> dict[str, Any] | None:
        good = [host for host in reversed(HOSTS) if not found[host].get("problem")][:count]
        return {"ranks": {host: rank for rank, host in enumerate(good)}} if len(good) == count else None

    return choose


def free(top: Path) -> list[bool]:
    """Whether a stranger could have each host now."""
    return [bool(Holder(LockFiles(str(top / host))).look(Wish("stranger", "1", {}))["free"]) for host in HOSTS]


def test_free_hosts_are_asked_once_each_all_at_the_same_time(
    leases: Callable[..., tuple[Hosts, Any]], tmp_path: Path
) -> None:
    hosts, taking = leases("one")
    choice = taking.take(facts(), chooses(5))
    assert choice is not None
    assert hosts.steps == [("lease", HOSTS, 5)]
    assert hosts.calls["lease"] == 5
    assert free(tmp_path) == [False] * 5


def test_what_was_got_is_given_back_before_hosts_are_asked_in_order(
    leases: Callable[..., tuple[Hosts, Any]], tmp_path: Path
) -> None:
    _, other = leases("other")
    assert other.take({**facts(), **{host: {"problem": "away"} for host in HOSTS[:4]}}, chooses(1)) is not None
    hosts, taking = leases("one")
    assert taking.take(facts(), chooses(5)) is None, "n4 is in use"
    in_order = [("lease", HOSTS[place : place + 1], min(place + 1, 4)) for place in range(5)]
    assert hosts.steps == [("lease", HOSTS, 4), ("look", HOSTS[:4], 0), *in_order]
    hosts.close()  # its connections end with it
    assert free(tmp_path) == [True] * 4 + [False]


def test_a_host_in_use_is_replaced_and_no_other_is_kept(
    leases: Callable[..., tuple[Hosts, Any]], tmp_path: Path
) -> None:
    _, other = leases("other")
    assert other.take({**facts(), **{host: {"problem": "away"} for host in HOSTS[:4]}}, chooses(1)) is not None
    _, taking = leases("one", "partial")
    choice = taking.take(facts(), chooses(3))
    assert sorted(choice["ranks"]) == ["n1", "n2", "n3"]
    assert free(tmp_path) == [True, False, False, False, False]


@pytest.mark.parametrize("seed", range(6))
def test_of_runs_that_want_the_same_hosts_at_once_one_gets_all_and_the_others_keep_none(
    leases: Callable[..., tuple[Hosts, Any]], tmp_path: Path, seed: int
) -> None:
    random.seed(seed)
    made = [leases(f"run-{number}") for number in range(4)]
    got: dict[str, Any] = {}

    def start(hosts: Hosts, taking: Any) -> None:
        got[hosts.run] = taking.take(facts(), chooses(5))
        if got[hosts.run] is None:
            hosts.close()

    threads = [threading.Thread(target=start, args=one) for one in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    winners = [run for run, choice in got.items() if choice]
    assert len(winners) == 1, json.dumps(got)
    (winner,) = (hosts for hosts, _ in made if hosts.run in winners)
    assert all(holder.descriptors() for holder in winner.holders.values())


def test_who_waits_gets_all_hosts_once_they_are_free_and_holds_none_that_another_waits_for_alone(
    leases: Callable[..., tuple[Hosts, Any]], tmp_path: Path
) -> None:
    first, taking = leases("first")
    assert taking.take(facts(), chooses(5)) is not None
    waiting, patient = leases("second", "wait")
    said: list[str] = []
    waiting.report = lambda **what: said.append(what["waits"])  # type: ignore[attr-defined]
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(patient.take(facts(), chooses(5))))
    thread.start()
    while not said:
        time.sleep(0.01)
    assert "waiting for n0: in use by" in said[0]
    first.close()
    thread.join(60)
    assert got
    assert got[0] is not None
    assert free(tmp_path) == [False] * 5
