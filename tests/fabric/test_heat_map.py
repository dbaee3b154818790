"""Pairs of nodes, drawn for a terminal and as a picture."""

from __future__ import annotations

import pytest

from launcher.doctor import heat_map


@pytest.mark.parametrize(("nodes", "last"), [(3, "n2       20        5        -"), (13, "n12 @@@@@@@@@@@ \\")])
def test_pairs_of_nodes_are_drawn_as_a_heat_map(nodes: int, last: str) -> None:
    """Two ranks each; those of the last node reach the two before it at a quarter of the speed."""

    def rate(a: int, b: int) -> float:
        return 5.0 if a != b and max(a, b) == nodes - 1 and min(a, b) >= nodes - 2 else 20.0

    reports = [
        {"rank": rank, "node": rank // 2, "latency_s": [1e-5] * 2 * nodes,
         "gbytes_per_s": [0.0 if other == rank else rate(rank // 2, other // 2) for other in range(2 * nodes)]}
        for rank in range(2 * nodes)
    ]  # fmt: skip
    pairs = heat_map.of_nodes(reports, {node: f"n{node}" for node in range(nodes)})

    assert pairs is not None
    drawn = heat_map.terminal(pairs)
    assert "bandwidth of each pair, GB/s: 5 to 20" in drawn
    assert "latency of each pair, us: 10 to 10" in drawn
    assert last in drawn
    assert f"n{nodes - 2} - n{nodes - 1}: 5</title>" in heat_map.svg(pairs, "a <title>")
    assert "a &lt;title&gt;" in heat_map.svg(pairs, "a <title>")
    assert heat_map.of_nodes([{"rank": 0, "node": 0}], {0: "n0", 1: "n1"}) is None


def test_a_long_latency_is_a_plain_number() -> None:
    bandwidth, latency = ([[0.0, value], [value, 0.0]] for value in (2.0, 0.0012345))
    drawn = heat_map.terminal(heat_map.Pairs(["n0", "n1"], bandwidth, latency))

    assert "latency of each pair, us: 1234 to 1234" in drawn
    assert [heat_map.number(value) for value in (0.01234, 999.4, 999.6, 1e5)] == ["0.0123", "999", "1000", "100000"]
