"""What a run costs its control plane does not grow with the number of its nodes, apart from its logarithm."""

from __future__ import annotations

import math

import pytest

from benchmarks import scale

pytestmark = pytest.mark.torch(False)


def test_calls_and_bytes_of_each_node_stay_within_their_bounds() -> None:
    found = [scale.measure(nodes, 8.0) for nodes in (8, 40)]

    for each in found:
        power = math.log2(each.nodes)
        assert each.calls <= scale.CALLS + scale.CALLS_EACH * power
        assert each.kib * 1024 <= scale.BYTES * power
        assert each.calls_at_rest <= 2 * scale.CALLS_AT_REST, "two signs may fall into the time of one"
    few, many = found
    assert many.calls <= few.calls + scale.CALLS_EACH * math.log2(many.nodes / few.nodes)
