"""What all nodes offer reaches all nodes as it was, however long it is."""

from __future__ import annotations

import json

import pytest

from launcher.agent.group import offers

pytestmark = pytest.mark.torch(False)


@pytest.mark.parametrize("nodes", [1, 2, 1000])
def test_offers_are_read_as_they_were_given(nodes: int) -> None:
    given = [
        {"host": f"nöde-{node}", "address": f"10.0.{node // 250}.{node % 250}", "ports": [1]} for node in range(nodes)
    ]
    texts = [json.dumps(each).encode() for each in given]

    packed = offers.pack(texts)

    assert offers.unpack(packed.encode()) == given
    assert len(packed) <= sum(map(len, texts)) + nodes + 1
    assert nodes < 1000 or len(json.dumps(packed)) < sum(map(len, texts)) / 5
