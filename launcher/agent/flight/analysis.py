"""Compares the dumps of all ranks with torch's own analyser, and says of each process group where it hangs.

That analyser is Python without torch's libraries. It is imported without them: torch's import takes seconds.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Tuple

_PARTS = ("torch", "torch.distributed", "torch.distributed.flight_recorder")
_ANALYSER = "torch.distributed.flight_recorder.components.builder"
_MAX_FINDINGS = 4

Place = Tuple[str, FrozenSet[int]]
"""A process group: its name, and its ranks, which are one object for all ranks that have it: they may be thousands."""

Places = Mapping[int, Mapping[str, Place]]
"""Of each rank, its process groups by name."""


class NoAnalyserError(Exception):
    """This torch has none."""


def analyse(dumps: Mapping[int, Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Where the ranks with these dumps hang, the earliest first; raises `NoAnalyserError`."""
    builder = _load()
    places = {rank: _places(dump) for rank, dump in dumps.items()}
    hung = _first_incomplete(dumps, places)
    joined = _narrow(dumps, places, hung)
    details = {f"rank_{rank}": _detail(rank, dump, places[rank]) for rank, dump in dumps.items()}
    version = next((dump["version"] for dump in dumps.values()), "")
    options = argparse.Namespace(
        verbose=False,
        just_print_entries=False,
        allow_incomplete_ranks=True,
        mismatch_cap=sys.maxsize,
        transform_ft=False,
    )
    found: Dict[Tuple[Place, int], Any] = {}
    for each in builder.build_db(details, options, version).collectives:
        found.setdefault(((each.group_id, frozenset(each.expected_ranks)), each.collective_seq_id), each)
    descriptions = _descriptions(dumps, places)
    findings: List[Dict[str, Any]] = []
    for place, (number, created) in sorted(hung.items(), key=lambda each: each[1][1]):
        if (place, number) in found and len(findings) < _MAX_FINDINGS:
            group = {"name": place[0], "description": descriptions[place], "ranks": sorted(place[1])}
            about = _finding(found[place, number], joined[place], dumps)
            findings.append({**about, "group": group, "created_ns": created})
    return findings


def _load() -> Any:
    """torch's analyser."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise NoAnalyserError
    path = list(spec.submodule_search_locations)
    for name in _PARTS:
        package = types.ModuleType(name)
        package.__path__ = path
        package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = package
        path = [os.path.join(each, {"torch": "distributed"}.get(name, "flight_recorder")) for each in path]
    try:
        return importlib.import_module(_ANALYSER)
    except ImportError as error:
        raise NoAnalyserError from error


def _places(dump: Mapping[str, Any]) -> Dict[str, Place]:
    every = {name: _ranks(about["ranks"]) for name, about in dump["pg_config"].items()}
    return {name: (name, ranks) for name, ranks in every.items() if ranks}


@functools.cache
def _ranks(text: str) -> FrozenSet[int]:
    numbers = text.strip("[]() ")
    return frozenset(map(int, numbers.split(","))) if numbers else frozenset()


def _detail(rank: int, dump: Mapping[str, Any], places: Mapping[str, Place]) -> Dict[str, Any]:
    """The dump for torch's analyser. It has `ast.literal_eval` read the ranks, which takes what is read already."""
    groups: Dict[str, Any] = {}
    for name, (_, ranks) in places.items():
        read: Any = ranks
        groups[name] = {**dump["pg_config"][name], "ranks": ast.Constant(value=read)}
    return {**dump, "pg_config": groups, "rank": rank, "host_name": ""}


def _descriptions(dumps: Mapping[int, Dict[str, Any]], places: Places) -> Dict[Place, str]:
    """By process group, the user's name for it."""
    every = [(place, dumps[rank]["pg_config"][name]) for rank in dumps for name, place in places[rank].items()]
    return {place: about["desc"] for place, about in every}


def _first_incomplete(dumps: Mapping[int, Dict[str, Any]], places: Places) -> Dict[Place, Tuple[int, int]]:
    """By process group, the number of the first collective that some rank has not completed, and when it was called."""
    found: Dict[Place, Tuple[int, int]] = {}
    for rank, dump in dumps.items():
        for entry in dump["entries"]:
            place = places[rank].get(entry["process_group"][0])
            if place is None or entry["state"] == "completed":
                continue
            mine = (entry["collective_seq_id"], entry["time_created_ns"])
            found[place] = min(mine, found.get(place, mine))
    return found


def _narrow(
    dumps: Mapping[int, Dict[str, Any]], places: Places, hung: Mapping[Place, Tuple[int, int]]
) -> Dict[Place, Dict[int, Any]]:
    """Leave only the collectives that hang in the dumps; returns their entries by process group and rank.

    What is completed needs no comparison, and torch's analyser sorts all ranks of a group for each entry. It aligns by
    the number of a rank's record, over all process groups, which differs between ranks: here it counts from 0. If the
    record of some rank begins later, nothing is known of that collective.
    """
    first: Dict[Place, int] = {}
    for rank, dump in dumps.items():
        numbers: Dict[Place, int] = {}
        for entry in dump["entries"]:
            place = places[rank].get(entry["process_group"][0])
            if place:
                numbers.setdefault(place, entry["collective_seq_id"])
        for place, number in numbers.items():
            first[place] = max(number, first.get(place, number))
    joined: Dict[Place, Dict[int, Any]] = {place: {} for place in hung}
    for rank, dump in dumps.items():
        kept: List[Dict[str, Any]] = []
        for entry in dump["entries"]:
            place = places[rank].get(entry["process_group"][0])
            if place and place in hung and entry["collective_seq_id"] == hung[place][0] >= first[place]:
                kept.append({**entry, "record_id": len(kept)})
                joined[place].setdefault(rank, kept[-1])
        dump["entries"] = kept
    return joined


def _finding(about: Any, joined: Mapping[int, Any], dumps: Mapping[int, Any]) -> Dict[str, Any]:
    """What the analyser says of one collective, as JSON."""
    mismatches = about.mismatch_collectives or {}
    odd = {*mismatches}
    if len(odd) * 2 > len(joined):  # it takes the first rank for right
        odd = {*joined} - odd
    most = next((entry for rank, entry in sorted(joined.items()) if rank not in odd), None)
    without = sorted(rank for rank in about.expected_ranks if rank not in dumps)
    missing = about.missing_ranks or about.expected_ranks - {*joined, *without}  # it is silent if a dump is missing
    kinds = [each.type_of_mismatch.state.name for each in mismatches.values() if each.type_of_mismatch]
    return {
        "number": about.collective_seq_id,
        "called": _called(most),
        "joined": sorted(rank for rank in joined if rank not in odd),
        "missing": sorted(missing),
        "mismatch": kinds[0] if kinds else None,
        "odd": {str(rank): _called(joined[rank]) for rank in sorted(odd) if rank in joined},
        "without_dump": without,
    }


def _called(entry: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    frames = entry["frames"] if entry else []
    at = f"{os.path.basename(frames[0]['filename'])}:{frames[0]['line']}" if frames else ""
    name = entry["profiling_name"].rpartition(":")[2] if entry else ""
    return {"name": name, "at": at, "state": entry["state"] if entry else ""}
