"""Compares the dumps of all ranks with torch's own analyser, and says of each process group where it hangs.

That analyser is Python without torch's libraries. It is imported without them: torch's import takes seconds.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types
from typing import Any, Dict, List, Mapping, Optional, Tuple

_PARTS = ("torch", "torch.distributed", "torch.distributed.flight_recorder")
_ANALYSER = "torch.distributed.flight_recorder.components.builder"
_MAX_FINDINGS = 4

Place = Tuple[str, Tuple[int, ...]]
"""A process group: its name, and its ranks."""


class NoAnalyserError(Exception):
    """This torch has none."""


def analyse(dumps: Mapping[int, Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Where the ranks with these dumps hang, the earliest first; raises `NoAnalyserError`."""
    builder = _load()
    groups = _groups(dumps)
    hung = _first_incomplete(dumps)
    _align(dumps)
    details = {f"rank_{rank}": {**dump, "rank": rank, "host_name": ""} for rank, dump in dumps.items()}
    version = next((dump["version"] for dump in dumps.values()), "")
    options = argparse.Namespace(
        verbose=False,
        just_print_entries=False,
        allow_incomplete_ranks=True,
        mismatch_cap=sys.maxsize,
        transform_ft=False,
    )
    joined = _joined(dumps, hung)  # the analyser empties the dumps
    found = builder.build_db(details, options, version).collectives
    findings = []
    for place, (number, created) in sorted(hung.items(), key=lambda each: each[1][1]):
        of_it = [each for each in found if (each.group_id, tuple(sorted(each.expected_ranks))) == place]
        about = next((each for each in of_it if each.collective_seq_id == number), None)
        if about is not None:
            findings.append({**_finding(about, joined[place], dumps), "group": groups[place], "created_ns": created})
    return findings[:_MAX_FINDINGS]


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


def _place(dump: Mapping[str, Any], name: str) -> Optional[Place]:
    about = dump["pg_config"].get(name)
    numbers = about["ranks"].strip("[]() ") if about else ""
    return (name, tuple(sorted(int(each) for each in numbers.split(",")))) if numbers else None


def _groups(dumps: Mapping[int, Dict[str, Any]]) -> Dict[Place, Dict[str, Any]]:
    found = {}
    for dump in dumps.values():
        for name, about in dump["pg_config"].items():
            place = _place(dump, name)
            if place:
                found[place] = {"name": name, "description": about["desc"], "ranks": list(place[1])}
    return found


def _first_incomplete(dumps: Mapping[int, Dict[str, Any]]) -> Dict[Place, Tuple[int, int]]:
    """By process group, the number of the first collective that some rank has not completed, and when it was called."""
    found: Dict[Place, Tuple[int, int]] = {}
    for dump in dumps.values():
        for entry in dump["entries"]:
            place = _place(dump, entry["process_group"][0])
            if place is None or entry["state"] == "completed":
                continue
            mine = (entry["collective_seq_id"], entry["time_created_ns"])
            found[place] = min(mine, found.get(place, mine))
    return found


def _align(dumps: Mapping[int, Dict[str, Any]]) -> None:
    """Have the entries of each process group begin with the same collective on all ranks that have any.

    torch's analyser aligns by the number of a rank's record, over all process groups: with several of them, these
    numbers differ between ranks. Here they count from 0.
    """
    first: Dict[Place, int] = {}
    for dump in dumps.values():
        numbers: Dict[Place, int] = {}
        for entry in dump["entries"]:
            place = _place(dump, entry["process_group"][0])
            if place:
                numbers.setdefault(place, entry["collective_seq_id"])
        for place, number in numbers.items():
            first[place] = max(number, first.get(place, number))
    for dump in dumps.values():
        kept: List[Dict[str, Any]] = []
        for entry in dump["entries"]:
            place = _place(dump, entry["process_group"][0])
            if place and entry["collective_seq_id"] >= first[place]:
                kept.append({**entry, "record_id": len(kept)})
        dump["entries"] = kept


def _joined(dumps: Mapping[int, Dict[str, Any]], hung: Mapping[Place, Tuple[int, int]]) -> Dict[Place, Dict[int, Any]]:
    """By process group, the entries of the ranks that have called that collective."""
    found: Dict[Place, Dict[int, Any]] = {place: {} for place in hung}
    for rank, dump in dumps.items():
        for entry in dump["entries"]:
            place = _place(dump, entry["process_group"][0])
            if place and place in hung and entry["collective_seq_id"] == hung[place][0]:
                found[place].setdefault(rank, dict(entry))
    return found


def _finding(about: Any, joined: Mapping[int, Any], dumps: Mapping[int, Any]) -> Dict[str, Any]:
    """What the analyser says of one collective, as JSON."""
    mismatches = about.mismatch_collectives or {}
    odd = sorted(mismatches)
    if len(odd) * 2 > len(joined):  # it takes the first rank for right
        odd = sorted(rank for rank in joined if rank not in odd)
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
        "odd": {str(rank): _called(joined[rank]) for rank in odd if rank in joined},
        "without_dump": without,
    }


def _called(entry: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    frames = entry["frames"] if entry else []
    at = f"{os.path.basename(frames[0]['filename'])}:{frames[0]['line']}" if frames else ""
    name = entry["profiling_name"].rpartition(":")[2] if entry else ""
    return {"name": name, "at": at, "state": entry["state"] if entry else ""}
