"""What one node reports of itself in doctor's job, and that it cannot report for others."""

from __future__ import annotations

import copy
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.fabric import discovery
from launcher.agent.protocol import LineTagger, encode_event
from launcher.doctor import examine, heat_map
from launcher.doctor.findings import Finding
from launcher.doctor.reports import Reports
from launcher.runs.reader import StreamReader
from launcher.service import examination
from tests.fabric import hosts
from tests.fabric.test_examine import NODES, sound

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LIAR = 2


@pytest.fixture(scope="module")
def dgx(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return discovery.read(hosts.dgx_h100(tmp_path_factory.mktemp("dgx")).tree(), full=True).to_json()


@pytest.fixture
def streams(dgx: dict[str, Any]) -> dict[int, bytes]:
    """The streams of six equal nodes with one rank each."""
    reports, facts = sound(dgx)
    return {node: stream(node, {**reports[node], "latency_s": [1e-6] * NODES}, facts[node]) for node in range(NODES)}


def stream(node: int, report: Any, facts: dict[str, Any], ranks: tuple[int, ...] = ()) -> bytes:
    """What a node's agent writes."""
    rendezvous = encode_event("rendezvous", node, ranks=list(ranks or (node,)), world_size=NODES)
    return (
        rendezvous
        + encode_event("facts", node, **facts)
        + report_line(node, node, report)
        + encode_event("done", node, result="success")
    )


def report_line(node: int, rank: int, report: Any) -> bytes:
    """A rank's line with its report."""
    return LineTagger(node, rank, "stdout").feed(b"doctor: " + json.dumps(report).encode() + b"\n")


def collected(streams: Mapping[int, bytes]) -> Reports:
    """What doctor takes from the streams."""
    found = Reports(NODES)
    for node, data in streams.items():
        for record in StreamReader(None, node).feed(data):
            found.take(node, record)
    return found


def test_everything_that_healthy_nodes_report_counts(streams: dict[int, bytes], dgx: dict[str, Any]) -> None:
    found = collected(streams)

    reports, facts = sound(dgx)
    assert found.reports == [{**report, "latency_s": [1e-6] * NODES} for report in reports]
    wanted = json.loads(json.dumps([{**about, "notes": []} for about in facts.values()]))
    assert [{key: about[key] for key in wanted[0]} for about in found.facts.values()] == wanted
    assert (found.done, found.claimed_twice) == (NODES, {})


def test_a_node_cannot_report_for_another(streams: dict[int, bytes], dgx: dict[str, Any]) -> None:
    """Whatever its workers or its agent write: reports of other ranks or nodes, in others' lines, again and again."""
    bad = {**sound(dgx)[0][0], "versions": {"torch": "1.0"}, "disks": {"/": {"free": 0, "total": 1, "error": "broken"}}}
    true = collected(streams).reports[0]
    lies = (
        report_line(LIAR, LIAR, bad),
        report_line(LIAR, 0, bad),
        report_line(0, 0, bad),
        report_line(LIAR, LIAR, {**bad, "rank": LIAR, "local_rank": 1}),
        b"doctor: " + json.dumps(bad).encode() + b"\n",
        encode_event("facts", 0, **{**dgx, "gpus": []}),
    )
    for lie in lies[:-1]:
        found = collected({**streams, LIAR: streams[LIAR] + lie, 3: streams[3]})
        assert found.reports == collected(streams).reports, lie[:40]
    assert {finding.node for finding in examine.examine([], collected({**streams, LIAR: lies[-1]}).facts)} == {LIAR}

    # Nor by claiming another's rank: its owner is unknown then, so nothing is held against either.
    both = stream(LIAR, sound(dgx)[0][LIAR], dgx, ranks=(LIAR, 0)) + report_line(LIAR, 0, {**bad, "local_rank": 1})
    found = collected({**streams, LIAR: both})
    assert found.claimed_twice == {0: [0, LIAR]}
    assert [report["node"] for report in found.reports] == [1, 3, 4, 5]
    assert true not in found.reports


ODD: tuple[Any, ...] = (
    None,
    -1,
    0,
    10**400,
    1e308,
    "",
    "x",
    "²",
    [],
    {},
    [[]],
    [None],
    {"a": 1},
    True,
    99,
    "9" * 5000,
    [[99, "1-2", "x"]],
)


def spots(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places in a report, or in facts."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from spots(inner, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with something else in that place."""
    made = copy.deepcopy(value)
    at = made
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    return made


@pytest.mark.parametrize("seed", range(4))
def test_whatever_one_node_reports_doctor_finishes_and_leaves_out_no_healthy_host(
    streams: dict[int, bytes], dgx: dict[str, Any], seed: int
) -> None:
    rng = random.Random(seed)
    reports, _ = sound(dgx)
    report = {
        **reports[LIAR],
        "latency_s": [1e-6] * NODES,
        "paths": {"blocked": [[0, "1-2", "no"]], "narrow": [[0, 1, 2]]},
    }
    facts = json.loads(json.dumps(dgx))
    in_report, in_facts = list(spots(report)), list(spots(facts))
    for number in range(60):
        told, about = report, facts
        if number % 2:
            told = changed(report, rng.choice(in_report), rng.choice(ODD))
        else:
            about = changed(facts, rng.choice(in_facts), rng.choice(ODD))
        found = collected({**streams, LIAR: stream(LIAR, told, about)})
        examine.examine(found.reports, found.facts)
        pairs = heat_map.of_nodes(found.reports, {node: f"n{node}" for node in range(NODES)})
        if pairs:
            heat_map.terminal(pairs)
        assert {node for node, _ in examine.lasting(found.reports, found.facts)} <= {LIAR}


@pytest.mark.parametrize(
    "line", ["", "{", "[1]", "null", "{}", '{"rank": 2}', "[" * 100_000, '{"rank": NaN, "local_rank": 0}']
)
def test_a_line_that_is_not_a_report_is_ignored(streams: dict[int, bytes], line: str) -> None:
    said = LineTagger(LIAR, LIAR, "stdout").feed(f"doctor: {line}\n".encode())

    assert collected({**streams, LIAR: streams[LIAR] + said}).reports == collected(streams).reports


def test_a_line_without_an_end_is_not_kept(streams: dict[int, bytes]) -> None:
    found = collected(streams)
    reader = StreamReader(None, LIAR)
    piece = b"%d.%d|+%s\n" % (LIAR, LIAR, b"x" * 60_000)
    for _ in range(1000):
        for record in reader.feed(piece):
            found.take(LIAR, record)

    assert sum(map(len, found._held[LIAR].values())) <= 16 << 20


def test_a_host_is_left_out_later_by_its_own_report_or_by_those_of_several(dgx: dict[str, Any]) -> None:
    """If two differ, it is unknown which is wrong; both are named all the same."""
    reports, facts = sound(dgx)
    for report in reports[1:3]:
        report["versions"]["torch"] = "2.1.0"
    reports[4]["clock_offset_s"] = 500.0
    reports[5]["disks"]["/"]["error"] = "broken"
    reports[3]["paths"]["blocked"] = [[0, "1-2", "no answer"]]
    facts[1]["gpus"] = facts[1]["gpus"][1:]

    failed = {(f.node, f.check) for f in examine.examine(reports, facts) if f.status == "fail"}
    assert failed == {(1, "versions"), (2, "versions"), (4, "clock"), (5, "disk"), (0, "ports"), (1, "gpu")}
    assert examine.lasting(reports, facts) == failed - {(0, "ports")}

    two = [copy.deepcopy(report) for report in reports[4:]]
    two[0]["versions"]["torch"] = "2.1.0"
    of_two = {(f.node, f.check) for f in examine.examine(two, {}) if f.status == "fail"}
    assert of_two >= {(5, "versions"), (5, "disk"), (4, "clock"), (5, "clock")}
    assert examine.lasting(two, {}) == {(5, "disk")}


def test_a_host_name_that_two_nodes_claim_is_left_out_for_neither() -> None:
    found = [Finding(node, "disk", "fail", "broken", "") for node in (0, 1, 3)] + [Finding(3, "gpu", "warn", "", "")]
    sure = {(0, "disk"), (1, "disk"), (3, "gpu")}

    assert examination.to_leave_out(found, sure, {0: "a", 1: "b", 2: "a", 3: "c"}, []) == {"b": "disk: broken"}
    assert examination.to_leave_out(found, sure, {0: "a", 1: "b", 2: "x", 3: "c"}, [1]) == {"a": "disk: broken"}
