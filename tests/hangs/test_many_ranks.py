"""What flight recorders tell of a run with many ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.flight import dumps, findings, program

ROOT = Path(__file__).parents[2]
COUNTS = """\
import sys
from launcher.agent.flight import analysis, dumps

found, count = {int(rank): dump for rank, dump in dumps.unpacked(sys.stdin.read()).items()}, 0


def called(frame, event, argument):
    global count
    count += event == "call"


out, sys.stdout = sys.stdout, sys.stderr  # torch's analyser prints
sys.setprofile(called)
analysis.analyse(found)
sys.setprofile(None)
print(count, file=out)
"""


def packed(ranks: int) -> str:
    """The dumps of so many ranks of one group, of which rank 3 has not called the last collective."""
    return dumps.packed({str(rank): _dump(ranks, 16 if rank == 3 else 17) for rank in range(ranks)})


def _dump(ranks: int, called: int) -> dict[str, Any]:
    about = {"name": "0", "desc": "default_pg", "ranks": str([*range(ranks)])}
    entries = [
        {
            "record_id": number,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": number,
            "p2p_seq_id": 0,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": number,
            **{name: [[4]] for name in ("input_sizes", "output_sizes")},
            **{name: ["Float"] for name in ("input_dtypes", "output_dtypes")},
            "state": "started" if number == 17 else "completed",
            "is_p2p": False,
            "frames": [{"name": "step", "filename": "train.py", "line": 88}],
        }
        for number in range(1, called + 1)
    ]
    return {"version": "2.10", "pg_config": {"0": about}, "entries": entries}


@pytest.mark.torch
def test_the_rank_that_is_missing_among_a_thousand_is_found() -> None:
    (found,) = program.ask({"do": program.ANALYSE, "dumps": [packed(1000)]}, 600.0)["findings"]

    assert (found["number"], found["missing"], len(found["joined"])) == (17, [3], 999)
    assert findings.in_words([found]) == "rank 3 never called all_reduce #17 (train.py:88)"


@pytest.mark.torch
def test_the_analysis_is_no_longer_than_the_dumps_are() -> None:
    """Each of them lists all ranks of the group."""
    few, some, many = (_calls(packed(ranks)) for ranks in (100, 200, 400))

    assert many - some < 2.5 * (some - few)


def _calls(dumped: str) -> int:
    """How many functions the analysis calls, with those that its imports call."""
    argv = [sys.executable, "-c", COUNTS]
    done = subprocess.run(argv, input=dumped, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    return int(done.stdout)


def test_ranks_that_called_the_same_are_named_together() -> None:
    """The words go to all nodes."""
    called = {"name": "all_reduce", "at": "train.py:88", "state": "started"}
    odd = {str(rank): {**called, "name": "broadcast"} for rank in range(500, 1000)}
    finding = {"number": 17, "called": called, "missing": [], "odd": odd, "mismatch": "COLLECTIVE_TYPE_MISMATCH"}

    words = findings.in_words([{**finding, "group": {"description": "default_pg"}}])

    assert words == "500 ranks called broadcast (train.py:88), where the others called all_reduce #17 (train.py:88)"


def test_the_rank_that_is_blamed_is_one_of_most_and_all_are_named() -> None:
    called = {"name": "all_reduce", "at": "", "state": "started"}
    names = {1: "scatter", 2: "broadcast", 3: "broadcast", 4: "gather", 5: "gather", 6: "reduce"}
    odd = {str(rank): {**called, "name": name} for rank, name in names.items()}
    finding = {"number": 17, "called": called, "missing": [], "odd": odd, "mismatch": "COLLECTIVE_TYPE_MISMATCH"}

    words = findings.in_words([{**finding, "group": {"description": "default_pg"}}])

    others = "where the others called all_reduce #17"
    assert words == f"ranks 2, 3 called broadcast, {others}; ranks 4, 5 called gather, {others}; ranks 1, 6 differ, too"
    assert findings.guilty(finding) == [2, 3, 4, 5, 1, 6]
