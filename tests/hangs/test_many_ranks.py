"""What flight recorders tell of a run with many ranks."""

from __future__ import annotations

from launcher.agent.flight import findings


def test_ranks_that_called_the_same_are_named_together() -> None:
    """The words go to all nodes."""
    called = {"name": "all_reduce", "at": "train.py:88", "state": "started"}
    odd = {str(rank): {**called, "name": "broadcast"} for rank in range(500, 1000)}
    finding = {"number": 17, "called": called, "missing": [], "odd": odd, "mismatch": "COLLECTIVE_TYPE_MISMATCH"}

    words = findings.in_words([{**finding, "group": {"description": "default_pg"}}])

    assert words == "500 ranks called broadcast (train.py:88), where the others called all_reduce #17 (train.py:88)"
