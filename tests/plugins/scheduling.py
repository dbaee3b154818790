"""Which process runs which test, so that all are busy to the end and every cluster comes up once.

Tests that share a cluster, or a fixture of their module, run in one process. As tests with clusters mostly wait, and
others mostly compute, clusters are given to as few processes as their share of the time allows. The rest is taken from
one queue, the longest first. How long a test takes is known from the last run (pytest's cache). A cluster is taken down
after its last test.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.plugins import subjects

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from _pytest.fixtures import FixtureDef

CACHE = "distlaunch/seconds"
GROUPS = "distlaunch_groups"
TESTBED = "testbed.fixtures"
BY_NAME = {"pods": "kube_nodes", "cut_off": "kube_nodes"}
"""Fixtures that request a cluster only when they run."""

CLUSTER_S = {
    "kube_controllers": 14.6, "kube_nodes": 14.6, "kube": 1.6, "slurm": 4.9, "slurm_accounting": 8.8, "ssh_hosts": 8.4,
}  # fmt: skip
"""How long a test with such a cluster takes if it has not run yet; for others see `subjects.TYPICAL_S`."""

_SURE = 0.75
"""This part of an even share of all work is given to a process as clusters, as they may take longer than expected."""


class Timing:
    """Records how long each test took."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Forget tests whose files have been removed."""
        cache = getattr(self.config, "cache", None)
        if cache is None or not self.seconds:
            return
        known = read_seconds(self.config)
        files = {nodeid.partition("::")[0] for nodeid in known}
        removed = {file for file in files if not (self.config.rootpath / file).exists()}
        kept = {nodeid: took for nodeid, took in known.items() if nodeid.partition("::")[0] not in removed}
        cache.set(CACHE, kept | {nodeid: round(took, 2) for nodeid, took in self.seconds.items()})


def read_seconds(config: pytest.Config) -> dict[str, float]:
    """How long tests took when they last ran."""
    cache = getattr(config, "cache", None)
    found = cache.get(CACHE, {}) if cache else {}
    return {str(nodeid): float(took) for nodeid, took in found.items()}


class Clusters:
    """In each process: which tests share what, and when a cluster is no longer needed."""

    def __init__(self, config: pytest.Config) -> None:
        self.path: str | None = getattr(config, "workerinput", {}).get(GROUPS)
        self.groups: dict[str, str] = {}
        self.users: dict[tuple[str, str], set[str]] = defaultdict(set)
        """The tests that will run here and share a fixture, by their group and its name."""

    @pytest.hookimpl(tryfirst=True)  # before xdist reports to the controller that this process has collected
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        shared = {item.nodeid: shared_fixtures(item) for item in session.items}
        if self.path:
            self.groups = groups(shared)
            new = Path(f"{self.path}.{os.getpid()}")
            new.write_text(json.dumps(self.groups), encoding="utf-8")
            new.replace(self.path)
        for nodeid, names in shared.items():
            for name in names:
                self.users[self.groups.get(nodeid, ""), name].add(nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Take a cluster down after its last test: it would cost other tests CPU time until the end."""
        result = yield
        for name in shared_fixtures(item):
            users = self.users[self.groups.get(item.nodeid, ""), name]
            users.discard(item.nodeid)
            if not users and ":" not in name:
                finish(item, name)
        return result


def finish(item: pytest.Item, name: str) -> None:
    """Finish a fixture of the session."""
    manager: Any = item.session._fixturemanager
    for fixture in manager.getfixturedefs(name, item) or ():
        if fixture.cached_result is not None:
            fixture.finish(request=item._request)  # type: ignore[attr-defined]


def shared_fixtures(item: pytest.Item) -> list[str]:
    """What a test shares with others: clusters by name, fixtures of modules and packages also by place."""
    info = getattr(item, "_fixtureinfo", None)
    found: set[str] = set()
    definitions: Mapping[str, Sequence[FixtureDef[Any]]] = info.name2fixturedefs if info else {}
    for name, known in definitions.items():
        fixture = known[-1]
        if fixture.scope == "session":
            if getattr(fixture.func, "__module__", "") == TESTBED:
                found.add(name)
        elif fixture.scope != "function":
            place = fixture.baseid if fixture.scope == "package" else item.nodeid.partition("::")[0]
            found.add(f"{place}:{name}")
        if name in BY_NAME:
            found.add(BY_NAME[name])
    return sorted(found)


def groups(shared: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """The groups of tests: tests are in one group if they share something, directly or through others.

    A test with clusters of several kinds, of which there are few, is in the group of the first: its process starts the
    others for it, as otherwise one process would have all tests with clusters.
    """
    grouped = {nodeid: of_one_kind(names) for nodeid, names in shared.items()}
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader.setdefault(name, name) != name:
            name = leader[name]
        return name

    for names in grouped.values():
        first, *others = names or [""]
        for other in others:
            a, b = sorted((find(first), find(other)), key=lambda name: (":" in name, name))  # clusters give the name
            leader[b] = a
    return {nodeid: find(names[0]) for nodeid, names in grouped.items() if names}


def of_one_kind(names: Iterable[str]) -> list[str]:
    """The names without clusters of another kind than the first, such as `slurm_accounting` after `kube_nodes`."""
    kinds = [name.partition("_")[0] for name in sorted(names) if ":" not in name]
    return [name for name in sorted(names) if ":" in name or name.partition("_")[0] == kinds[0]]


def shares(weights: Mapping[str, float], clusters: Iterable[str], processes: int) -> list[list[str]]:
    """Which process starts with which clusters: the largest first, and the next process only beyond its share."""
    share = _SURE * sum(weights.values()) / processes
    own: list[list[str]] = [[] for _ in range(processes)]
    load = [0.0] * processes
    for name in sorted(clusters, key=lambda name: -weights[name]):
        fits = [index for index in range(processes) if load[index] + weights[name] <= share]
        index = fits[0] if fits else load.index(min(load))
        own[index].append(name)
        load[index] += weights[name]
    return own


class Distribution:
    """In the controller: makes the scheduler, and tells the processes where to write the groups."""

    def __init__(self) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="distlaunch-tests-")
        self.groups = Path(self.directory.name) / "groups"

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[GROUPS] = str(self.groups)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        return make_scheduler(config, log, self.groups)

    def pytest_unconfigure(self) -> None:
        self.directory.cleanup()


def make_scheduler(config: pytest.Config, log: Any, path: Path) -> Any:
    """A scheduler of xdist whose units are groups; xdist is imported only if there are several processes."""
    from xdist.scheduler import LoadScopeScheduling

    class Balanced(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        group_of: dict[str, str] | None = None

        def _split_scope(self, nodeid: str) -> str:
            if self.group_of is None:
                self.group_of = json.loads(path.read_text(encoding="utf-8"))
            return self.group_of.get(nodeid, nodeid)

        def _plan(self) -> None:
            """Weigh the units, and assign the clusters."""
            known = read_seconds(self.config)
            self.weights = {
                unit: sum(known.get(nodeid, CLUSTER_S.get(unit) or subjects.typical_s(nodeid)) for nodeid in tests)
                for unit, tests in self.workqueue.items()
            }
            clusters = [unit for unit in self.workqueue if "::" not in unit and ":" not in unit]
            own = shares(self.weights, clusters, max(len(self.nodes), 1))
            self.own = dict(zip(self.nodes, own, strict=False))

        def _assign_work_unit(self, node: Any) -> None:
            """First a process's own clusters, then the longest unassigned unit, then those of other processes."""
            if not hasattr(self, "own"):
                self._plan()
            others = {unit for units in self.own.values() for unit in units}
            mine = [unit for unit in self.own.get(node, []) if unit in self.workqueue]
            free = [unit for unit in self.workqueue if unit not in others]
            unit = mine[0] if mine else max(free or self.workqueue, key=lambda unit: self.weights.get(unit, 0))
            self.workqueue.move_to_end(unit, last=False)
            super()._assign_work_unit(node)

    config.option.loadscopereorder = False
    return Balanced(config, log)


def pytest_configure(config: pytest.Config) -> None:
    worker = hasattr(config, "workerinput")
    if not worker:
        config.pluginmanager.register(Timing(config), "distlaunch-timing")
        config.pluginmanager.register(Distribution(), "distlaunch-distribution")
    config.pluginmanager.register(Clusters(config), "distlaunch-clusters")
