"""Reads the dumps of one node's ranks, and keeps the collectives around the one that hangs, which are to be compared.

A dump is a pickle that a worker wrote: of any size, perhaps half written. It is read without any code in it, in a
program of its own that has limits.
"""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import zlib
from typing import Any, Dict, List, Mapping

from ..stacks.stack import Frame, own_frame

_MAX_BYTES = 64 << 20
_BEFORE, _AFTER = 16, 48
"""How many collectives of a process group are kept around the first one that is not complete."""

_KEPT = (
    *("record_id", "pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "op_id", "profiling_name"),
    *("time_created_ns", "input_sizes", "input_dtypes", "output_sizes", "output_dtypes", "state", "retired", "is_p2p"),
)
_MAX_TEXT = 200


class UnreadableError(Exception):
    """A dump cannot be read; the message says why."""


class _Plain(pickle.Unpickler):
    """Loads lists, dictionaries, numbers and texts; never a class or a function."""

    def find_class(self, module: str, name: str) -> Any:
        raise UnreadableError(f"it holds code: {module}.{name}"[:_MAX_TEXT])


def read(paths: Mapping[str, str]) -> Dict[str, Any]:
    """The dumps by rank, condensed, and for those that cannot be read why."""
    ranks: Dict[str, Any] = {}
    unreadable: Dict[str, str] = {}
    for rank, path in paths.items():
        try:
            ranks[rank] = condensed(path)
        except UnreadableError as error:
            unreadable[rank] = str(error)
        except (OSError, MemoryError, RecursionError) as error:
            unreadable[rank] = f"{type(error).__name__}: {error}"[:_MAX_TEXT]
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the file
            unreadable[rank] = f"it is no dump, or not all of one ({type(error).__name__})"
    return {"ranks": ranks, "unreadable": unreadable}


def condensed(path: str) -> Dict[str, Any]:
    """What a comparison needs of one dump. Point-to-point operations are left out: torch cannot match them alone."""
    if os.path.getsize(path) > _MAX_BYTES:
        raise UnreadableError(f"it has more than {_MAX_BYTES >> 20} MiB")
    with open(path, "rb") as file:
        dump = _Plain(io.BytesIO(file.read(_MAX_BYTES))).load()
    groups = {
        str(name): {"name": str(about["name"]), "desc": str(about["desc"]), "ranks": str(about["ranks"])}
        for name, about in dump["pg_config"].items()
    }
    entries = [_entry(entry) for entry in dump["entries"] if not entry.get("is_p2p")]
    return {"version": str(dump["version"]), "pg_config": groups, "entries": _around(entries)}


def _entry(entry: Mapping[str, Any]) -> Dict[str, Any]:
    kept = {name: entry[name] for name in _KEPT if name in entry}
    frames: List[Frame] = [
        {"function": str(at["name"]), "file": str(at["filename"]), "line": int(at["line"])}
        for at in entry.get("frames") or []
    ]
    at = own_frame(frames)
    own = frames[at] if at >= 0 else None
    called = {"name": own["function"], "filename": own["file"], "line": own["line"]} if own else None
    return {
        **kept,
        "process_group": [str(each) for each in entry["process_group"]],
        "frames": [called] if called else [],
    }


def _around(entries: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The entries around the first one of each process group that is not complete, or its last ones."""
    numbers: Dict[str, int] = {}
    for entry in entries:
        group, number = entry["process_group"][0], entry["collective_seq_id"]
        if entry["state"] != "completed":
            numbers[group] = min(number, numbers.get(group, number))
    last = {entry["process_group"][0]: entry["collective_seq_id"] for entry in entries}
    center = {**last, **numbers}
    return [
        entry
        for entry in entries
        if -_BEFORE <= entry["collective_seq_id"] - center[entry["process_group"][0]] <= _AFTER
    ]


def packed(found: Dict[str, Any]) -> str:
    """As a text that is small: entries are alike."""
    return base64.b64encode(zlib.compress(json.dumps(found).encode(), 6)).decode()


def unpacked(text: str, most: int = 256 << 20) -> Dict[str, Any]:
    """The reverse."""
    plain = zlib.decompressobj().decompress(base64.b64decode(text), most)
    found: Dict[str, Any] = json.loads(plain)
    return found
