"""The rows of `distlaunch top`: nodes, ranks or runs as lines of a fixed width, which lose columns before they wrap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.agent.named_tuple import NamedTuple
from launcher.console import progress_text, summary
from launcher.system import escapes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_LEAST_TEXT = 12
"""The last column is left out if less than this is left for it."""

_HOST = 16
_UNITS = (("s", 1), ("m", 60), ("h", 3600))


class Column(NamedTuple):
    """One column; those with a high `rank` are left out first."""

    title: str
    rank: int
    of: Callable[[Any], str]
    left: bool = False


def lines(kind: str, rows: Sequence[Mapping[str, Any]], width: int | None) -> list[str]:
    """The heading, and a line for each row; `width` None: as wide as needed, with all columns.

    A column that is empty in all rows is left out.
    """
    columns, cells = [], []
    for column in _COLUMNS[kind]:
        each = [column.of(row) for row in rows]
        if any(each) or column.rank == 0:
            wide = max([len(column.title), *map(len, each)])
            columns.append((column, wide))
            cells.append([cell.ljust(wide) if column.left else cell.rjust(wide) for cell in [column.title, *each]])
    while width is not None and _width(columns) > width and len(columns) > 1:
        worst = max(range(len(columns)), key=lambda place: columns[place][0].rank)
        del columns[worst], cells[worst]
    room = None if width is None else width - _width(columns) - 1
    text = _TEXTS[kind]
    shown = room is None or room >= _LEAST_TEXT
    said = [text.title, *map(text.of, rows)] if shown else [""] * (len(rows) + 1)
    found = [
        " ".join([*row, words if room is None else cut(words, room)]).rstrip()
        for row, words in zip(zip(*cells, strict=True), said, strict=True)
    ]
    return found if width is None else [cut(line, width) for line in found]


def _width(columns: Sequence[tuple[Column, int]]) -> int:
    return sum(wide + 1 for _, wide in columns) - 1


def cut(text: str, width: int) -> str:
    """The text in at most `width` cells of a terminal; some characters take two."""
    if text.isascii():
        return text[:width]
    from rich.cells import cell_len, set_cell_size  # few lines need it

    return text if cell_len(text) <= width else set_cell_size(text, width)


def size(value: float | None) -> str:
    """`1.5G`: at most five characters."""
    if value is None:
        return ""
    for unit in "BKMGT":
        if value < 999.5 or unit == "T":
            break
        value /= 1024
    return f"{value:.3g}{unit}" if value < 99.5 else f"{value:.0f}{unit}"


def _number(digits: int, name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "" if row[name] is None else f"{row[name]:.{digits}f}"


def _of(name: str, total: str) -> Callable[[Mapping[str, Any]], str]:
    """`3.2/64`."""
    return lambda row: "" if row[name] is None else f"{row[name]:.1f}" + (f"/{row[total]}" if row[total] else "")


def _bytes(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: size(row[name])


def _step(row: Mapping[str, Any]) -> str:
    if row["step"] is None:
        return ""
    return f"{row['step']}/{row['steps']}" if row["steps"] else str(row["step"])


def _quiet(row: Mapping[str, Any]) -> str:
    seconds = row["silent_s"]
    if seconds is None:
        return ""
    unit, length = next(each for each in _UNITS if seconds < 100 * each[1] or each[0] == "h")
    return f"{seconds / length:.0f}{unit}"


def _host(row: Mapping[str, Any]) -> str:
    return escapes.plain(row["host"])[:_HOST]


def _said(row: Mapping[str, Any]) -> str:
    odd = f"<{row['odd']}> " if row["odd"] and row["odd"] != row["state"] else ""
    return escapes.plain(odd + row.get("last_line", ""))


def _progress(row: Mapping[str, Any]) -> str:
    told = [progress_text.line(row["progress"])] if row["progress"] else []
    return escapes.plain("; ".join([*told, *(progress_text.finding(one) for one in row["findings"][:1])]))


_COLUMNS = {
    "ranks": [
        Column("RANK", 0, lambda row: str(row["rank"])),
        Column("NODE", 8, lambda row: str(row["node"])),
        Column("HOST", 3, _host, left=True),
        Column("STATE", 1, lambda row: escapes.plain(row["state"]), left=True),
        Column("STEP", 2, _step),
        Column("LOSS", 6, lambda row: "" if row["loss"] is None else f"{row['loss']:.4g}"),
        Column("CPU", 4, _number(2, "cpu")),
        Column("MEM", 5, _bytes("memory_bytes")),
        Column("GPU%", 4, _number(0, "gpu")),
        Column("LINES/S", 7, _number(1, "lines_per_s")),
        Column("QUIET", 3, _quiet),
    ],
    "nodes": [
        Column("NODE", 0, lambda row: str(row["node"])),
        Column("HOST", 2, _host, left=True),
        Column("STATE", 1, lambda row: escapes.plain(row["state"]), left=True),
        Column("RANKS", 6, lambda row: summary.ranks_text(tuple(row["ranks"]))),
        Column("CPU", 3, _of("cpu", "cpus")),
        Column("MEM", 4, _bytes("memory_bytes")),
        Column("GPU%", 3, _number(0, "gpu")),
        Column("GMEM", 5, _bytes("gpu_memory_bytes")),
        Column("WATT", 6, _number(0, "power_w")),
        Column("IN/S", 7, _bytes("received")),
        Column("OUT/S", 7, _bytes("sent")),
        Column("RDMA IN/S", 7, _bytes("rdma_received")),
        Column("RDMA OUT/S", 7, _bytes("rdma_sent")),
        Column("RESTARTS", 8, lambda row: str(row["restarts"] or "")),
        Column("SEEN", 3, _quiet),
    ],
    "runs": [
        Column("RUN", 0, lambda row: row["run"], left=True),
        Column("STATE", 1, lambda row: row["state"], left=True),
        Column("NODES", 3, lambda row: str(row["nodes"])),
        Column("AGE", 2, lambda row: summary.age(row["created"])),
    ],
}
_TEXTS = {
    "ranks": Column("LAST LINE", 0, _said),
    "nodes": Column("ODD", 0, _said),
    "runs": Column("PROGRESS", 0, _progress),
}
