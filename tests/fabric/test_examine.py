"""What doctor concludes from reports: each fault is found on its node alone, and healthy clusters have none."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.fabric import discovery
from launcher.doctor import checks, examine, findings
from launcher.doctor.checks import links
from tests.fabric import hosts

if TYPE_CHECKING:
    from collections.abc import Callable

NODES = 6
VERSIONS = {"python": "3.11.7", "torch": "2.15.0", "cuda": "13.2", "nccl": "2.30.7", "gpu": hosts.H100}
Report = dict[str, Any]
Facts = dict[int, dict[str, Any]]


@pytest.fixture(scope="module")
def dgx(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return discovery.read(hosts.dgx_h100(tmp_path_factory.mktemp("dgx")).tree(), full=True).to_json()


def sound(dgx: dict[str, Any]) -> tuple[list[Report], Facts]:
    """Reports and facts of six equal, healthy nodes with one rank each."""
    reports = [
        {
            "rank": node, "node": node, "local_rank": 0, "host": f"n{node}", "versions": dict(VERSIONS),
            "clock_offset_s": 0.001 * node, "paths": {"blocked": [], "narrow": []},
            "disks": {"/": {"free": 1 << 40, "total": 1 << 41, "error": None}}, "gemm_tflops": 700.0 + node,
            "gbytes_per_s": [0.0 if other == node else 40.0 + other for other in range(NODES)],
        }
        for node in range(NODES)
    ]  # fmt: skip
    facts = {node: copy.deepcopy(dgx) for node in range(NODES)}
    for about in facts.values():
        about["limits"]["shm_bytes"] = 64 << 30
    return reports, facts


def test_a_healthy_cluster_has_no_findings(dgx: dict[str, Any]) -> None:
    found = examine.examine(*sound(dgx))

    assert found == []
    assert findings.worst(found) == "ok"


def set_in(path: str, value: Any) -> Callable[[list[Report], Facts], None]:
    """Sets, for example, `report.versions.torch` or `facts.limits.memlock_bytes` of node 2."""

    def spoil(reports: list[Report], facts: Facts) -> None:
        first, *keys = path.split(".")
        at: Any = reports[2] if first == "report" else facts[2]
        for key in keys[:-1]:
            at = at[int(key) if isinstance(at, list) else key]
        at[int(keys[-1]) if isinstance(at, list) else keys[-1]] = value

    return spoil


def slow_host(reports: list[Report], _: Facts) -> None:
    for node in range(NODES):
        reports[node]["gbytes_per_s"][2] = reports[2]["gbytes_per_s"][node] = 0.0 if node == 2 else 3.0


def slow_link(reports: list[Report], _: Facts) -> None:
    reports[2]["gbytes_per_s"][4] = reports[4]["gbytes_per_s"][2] = 3.0


def paths(what: str, pairs: list[tuple[int, int]], *about: Any) -> Callable[[list[Report], Facts], None]:
    """These pairs (from, to) have trouble."""

    def spoil(reports: list[Report], _: Facts) -> None:
        for one, other in pairs:
            reports[one]["paths"][what].append([other, *about])

    return spoil


TO_TWO = [(node, 2) for node in range(NODES) if node != 2]
FROM_TWO = [(other, one) for one, other in TO_TWO]


@pytest.mark.parametrize(
    ("spoil", "check", "status", "words"),
    [
        (set_in("report.versions.torch", "2.14.1"), "versions", "fail", "torch 2.14.1, where most nodes have 2.15.0"),
        (set_in("report.versions.python", "3.12.1"), "versions", "warn", "python 3.12.1"),
        (set_in("facts.gpus.0.driver", "550.1"), "versions", "warn", "driver 535.161.08, 550.1"),
        (set_in("report.clock_offset_s", -300.0), "clock", "fail", "clock 300.0 s behind the others"),
        (set_in("report.clock_offset_s", 2.5), "clock", "warn", "2.5 s ahead"),
        (set_in("report.disks./.error", "No space left on device"), "disk", "fail", "/: No space left on device"),
        (set_in("report.disks./.free", 100 << 20), "disk", "warn", "100 MiB"),
        (set_in("facts.limits.memlock_bytes", 65536), "limits", "fail", "locked memory 64 KiB with RDMA devices"),
        (set_in("facts.limits.open_files", 1024), "limits", "warn", "1024 open files"),
        (set_in("facts.limits.shm_bytes", 64 << 20), "limits", "warn", "64 MiB"),
        (set_in("facts.hcas.3.state", "DOWN"), "network", "fail", "mlx5_4 is DOWN at 0 Gb/s, elsewhere it has 400"),
        (set_in("facts.hcas.3.rate_gbps", 200.0), "network", "fail", "mlx5_4 is ACTIVE at 200 Gb/s"),
        (set_in("facts.nics.-1.mtu", 9000), "network", "warn", "ens6f1 has MTU 9000, elsewhere 1500"),
        (set_in("facts.nics.-1.up", False), "network", "fail", "ens6f1 is down, elsewhere it is up"),
        (set_in("facts.nics.-1.addresses", []), "network", "fail", "ens6f1 has no address, elsewhere it is up"),
        (set_in("facts.notes", ["something"]), "network", "warn", "something"),
        (
            paths("blocked", TO_TWO, "32768-60999", "refused"),
            "ports",
            "fail",
            "do not open from 5 hosts (n[0-1,3-5]) (",
        ),
        (
            paths("blocked", FROM_TWO, "10000-21383", "EACCES"),
            "ports",
            "fail",
            "10000-21383 cannot be opened on 5 hosts",
        ),
        (
            paths("blocked", [(3, 2)], "12345 (MASTER_PORT)", "no answer"),
            "ports",
            "fail",
            "12345 (MASTER_PORT) do not open from n3",
        ),
        (
            paths("narrow", [(2, 4), (4, 2)], 1450, 1500),
            "mtu",
            "warn",
            "over 1450 bytes are lost, though interfaces take 1500",
        ),
        (paths("narrow", TO_TWO, None, 9000), "mtu", "warn", "no UDP passes between it and 5 hosts"),
        (
            paths("blocked", FROM_TWO, "10000-21383", "stalled"),
            "mtu",
            "fail",
            "full packets are lost, between it and 5 hosts",
        ),
        (lambda _, facts: facts[2]["gpus"].pop(), "gpu", "fail", "7 GPUs, elsewhere 8"),
        (set_in("facts.gpus.5.xid", [79, 48, 79]), "gpu", "fail", "GPU 5: Xid 48, 79"),
        (set_in("facts.gpus.5.xid", [79, 13]), "gpu", "fail", "GPU 5: Xid 13, 79"),
        (set_in("facts.gpus.5.xid", [45, 31]), "gpu", "warn", "GPU 5: Xid 31, 45, as a rule an application's error"),
        (set_in("facts.gpus.5.ecc_uncorrected", 2), "gpu", "fail", "GPU 5: 2 uncorrected ECC errors"),
        (set_in("facts.gpus.5.pcie", "gen 5 of 5, x8 of 16"), "gpu", "warn", "GPU 5: PCIe x8 of 16"),
        (set_in("facts.gpus.5.links.0", "SYS"), "gpu", "warn", "GPU 5: no NVLink to some GPUs"),
        (set_in("report.gemm_tflops", 500.0), "speed", "warn", "71% of the median"),
        (set_in("report.gemm_tflops", 100.0), "speed", "fail", "100 TFLOP/s, 14% of the median 702 (deviation"),
        (slow_host, "links", "fail", "3 GB/s with most hosts; a host's median is 4"),
        (slow_link, "links", "warn", "3 GB/s to n4, 7% of the median pair"),
    ],
)
def test_a_fault_is_found_on_its_node_alone(
    dgx: dict[str, Any], spoil: Callable[[list[Report], Facts], None], check: str, status: str, words: str
) -> None:
    reports, facts = sound(dgx)
    spoil(reports, facts)

    found = examine.examine(reports, facts)

    assert [(finding.node, finding.check, finding.status) for finding in found] == [(2, check, status)]
    assert words in found[0].reason
    assert found[0].fix


def test_a_port_of_a_device_is_compared_with_the_same_port_elsewhere(dgx: dict[str, Any]) -> None:
    """On all hosts one of two ports has no cable, and on one host neither has."""
    reports, facts = sound(dgx)
    for about in facts.values():
        second = {**about["hcas"][0], "port": 2, "state": "DOWN"}
        about["hcas"].append(second)
    assert examine.examine(reports, facts) == []

    facts[2]["hcas"][0]["state"] = "DOWN"
    (found,) = examine.examine(reports, facts)
    assert (found.node, found.reason) == (2, "mlx5_0:1 is DOWN at 0 Gb/s, elsewhere it has 400")


def test_if_the_nodes_do_not_meet_the_network_of_node_0_is_blamed() -> None:
    (found,) = examine.meeting({"class": "fabric", "message": "waited 9 s for node 0 to answer at any of 10.0.0.1"})

    assert (found.node, found.check, found.status) == (0, "ports", "fail")
    assert "others cannot reach it: waited 9 s for node 0" in found.reason
    assert list(examine.meeting({"class": "user code", "message": "ValueError"})) == list(examine.meeting(None)) == []


def test_of_two_nodes_that_differ_in_speed_neither_is_blamed(dgx: dict[str, Any]) -> None:
    reports, facts = sound(dgx)
    reports[1]["gemm_tflops"] = 1.0

    assert examine.examine(reports[:2], {0: facts[0], 1: facts[1]}) == []


def test_of_two_nodes_the_one_with_fewer_gpus_is_named_whichever_it_is(dgx: dict[str, Any]) -> None:
    for node in (0, 1):
        reports, facts = sound(dgx)
        facts[node]["gpus"].pop()
        (found,) = examine.examine(reports[:2], {0: facts[0], 1: facts[1]})
        assert (found.node, found.reason) == (node, "7 GPUs, elsewhere 8")


@pytest.mark.parametrize("alone", [False, True])
def test_gpus_that_nvlink_joins_in_pairs_lack_none(dgx: dict[str, Any], *, alone: bool) -> None:
    """By bridges: 0 with 1, 2 with 3. Then one bridge is loose on one node."""
    reports, facts = sound(dgx)
    for about in facts.values():
        for gpu in about["gpus"]:
            pair = str(gpu["index"] ^ 1)
            gpu["links"] = {other: "NV4" if other == pair else "SYS" for other in gpu["links"]}
    reports, facts = (reports[2:3], {2: facts[2]}) if alone else (reports, facts)
    assert examine.examine(reports, facts) == []

    for index in (2, 3):
        facts[2]["gpus"][index]["links"] = dict.fromkeys(facts[2]["gpus"][index]["links"], "SYS")
    assert [(found.node, found.reason) for found in examine.examine(reports, facts)] == [
        (2, f"GPU {index}: no NVLink to some GPUs") for index in (2, 3)
    ]


def test_of_two_versions_on_as_many_nodes_neither_is_the_usual_one(dgx: dict[str, Any]) -> None:
    reports, facts = sound(dgx)
    for report in reports[:3]:
        report["versions"]["torch"] = "2.14.1"

    found = examine.examine(reports, facts)

    assert [(finding.node, finding.reason) for finding in found] == [
        *((node, "torch 2.14.1, where other nodes have 2.15.0") for node in range(3)),
        *((node, "torch 2.15.0, where other nodes have 2.14.1") for node in range(3, 6)),
    ]
    assert examine.lasting(reports, facts) == set()


def test_of_four_hosts_the_slow_one_is_found_and_links_that_merely_vary_are_not(dgx: dict[str, Any]) -> None:
    reports, facts = sound(dgx)
    slow_host(reports, facts)
    four = [{**report, "gbytes_per_s": report["gbytes_per_s"][:4]} for report in reports[:4]]

    assert [(finding.node, finding.status) for finding in links.links(four)] == [(2, "fail")]

    rates = iter([1.6, 0.5, 1.1, 0.7, 2.4, 0.4, 1.9, 0.6, 1.2, 0.8, 2.9, 0.5, 1.4, 0.9, 2.2])
    for a in range(NODES):
        for b in range(a + 1, NODES):
            reports[a]["gbytes_per_s"][b] = reports[b]["gbytes_per_s"][a] = next(rates)

    assert list(links.links(reports)) == []


def test_a_node_that_has_not_reported_lacks_nothing(dgx: dict[str, Any]) -> None:
    reports, facts = sound(dgx)

    assert examine.examine([report for report in reports if report["node"] != 2], facts) == []


def test_a_job_that_failed_leaves_what_each_node_reported_before(dgx: dict[str, Any]) -> None:
    reports, facts = sound(dgx)
    set_in("report.versions.torch", "2.14.1")(reports, facts)
    early = [
        {key: report[key] for key in ("rank", "node", "local_rank", "host", "versions", "disks")} for report in reports
    ]

    assert [(found.node, found.check) for found in examine.examine(early, facts)] == [(2, "versions")]
    assert [name for name, check in checks.known().items() if not check.seen(early[0], facts[0])] == [
        "clock", "ports", "mtu", "speed", "links",
    ]  # fmt: skip
