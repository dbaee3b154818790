"""Which nodes of a large run have the ranks that are shown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from launcher.service import bringing


def test_ranks_count_on_over_all_roles() -> None:
    roles = (("trainer", 4), ("trainer", 4), ("reward", 2), ("reward", None))
    rows = [{"node_rank": rank, "workers": count, "role": name} for rank, (name, count) in enumerate(roles)]
    run: Any = SimpleNamespace(plan={"nodes": rows})

    assert [bringing.nodes_of(run, [rank], 3) for rank in (0, 7, 8, 9, 10, 12)] == [{0}, {1}, {2}, {2}, {3}, {3}]
    assert bringing.nodes_of(run, [1, 8], 3) == {0, 2}
    assert bringing.nodes_of(run, [13], 3) == bringing.nodes_of(run, [], 3) == set()
