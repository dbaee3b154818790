"""What the screen of `distlaunch top` shows of one run, and what keys do there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from launcher import output
from launcher.console import progress_text, top_table
from launcher.console.top_table import cut
from launcher.system import escapes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.results.top import Top

Action = Literal["", "quit", "cancel", "stacks"]
HELP = "q quit  n nodes/ranks  / filter  arrows select  enter log  s stacks  c cancel"
NO_SAMPLES = "no samples: the run is younger than their interval, ended before it, or was started with --samples 0"
_MOVES = {"\x1b[A": -1, "k": -1, "\x1b[B": 1, "j": 1, "\x1b[5~": -20, "\x1b[6~": 20, "\x1b[H": -(10**6), "g": -(10**6)}
_QUIT = ("q", "\x1b", "\x04")
_KEY = re.compile(r"\x1b\[\[?[0-?]*[ -/]*[@-~]|\x1bO.|.", re.DOTALL)
_STYLES = {"failed": "red", "fails": "red", "silent": "red", "suspended": "yellow"}
_FINDINGS = 2


class View:
    """The state of the screen."""

    def __init__(self, tail: Callable[[int], bytes]) -> None:
        """`tail` gives the latest output of a rank."""
        self.tail = tail
        self.page: Literal["list", "log", "text"] = "list"
        self._kind = "ranks"
        self._filter, self._is_typing, self._asks = "", False, False
        self._selected: int | None = None
        """The rank or node of the selected row, wherever it is by now; None: the first one."""

        self._rank, self._top_row = 0, 0
        self._top: Top | None = None
        """What was drawn last: keys are about that."""

        self._text: list[str] = []
        self.message = ""
        """Shown in the last line instead of the help, until the next key."""

    def show(self, text: str) -> None:
        """Show a text, such as stacks, until a key closes it."""
        self.page, self._text = "text", [escapes.plain(line) for line in text.splitlines()]

    # -- drawing ------------------------------------------------------------------------------------------------------

    def lines(self, top: Top, rows: int, width: int) -> list[str]:
        """The screen's lines, from the top."""
        self._top = top
        head = [output.paint(cut(_title(top), width), "bold", output.STDOUT)]
        if top["progress"] is not None:
            head.append(cut(_bar(top, width) + progress_text.line(top["progress"]), width))
        head += [cut(f"odd: {escapes.plain(progress_text.finding(one))}", width) for one in top["findings"][:_FINDINGS]]
        if not top["sampled"]:
            head.append(cut(NO_SAMPLES, width))
        room = max(1, rows - len(head) - 1)
        return [*head, *self._body(top, room, width)[:room], *self._foot(width)]

    def _body(self, top: Top, room: int, width: int) -> list[str]:
        if self.page == "text":
            body = [cut(line, width) for line in self._text[:room]]
        elif self.page == "log":
            title = output.paint(cut(f"rank {self._rank}", width), "bold", output.STDOUT)
            body = [title, *_log(self.tail(self._rank), room - 1, width)]
        else:
            body = self._table(self._rows(top), room, width)
        return [*body, *[""] * (room - len(body))]

    def _table(self, rows: Sequence[Mapping[str, Any]], room: int, width: int) -> list[str]:
        shown = max(1, room - 1)
        selected = self._place(rows)
        self._top_row = max(min(self._top_row, selected), selected - shown + 1, 0)
        part = rows[self._top_row : self._top_row + shown]
        heading, *lines = top_table.lines(self._kind, part, width)
        painted = [output.paint(heading, "bold", output.STDOUT)]
        for number, (line, row) in enumerate(zip(lines, part, strict=True)):
            style = _STYLES.get(row["state"], "red" if row["state"] == row["odd"] else "yellow") if row["odd"] else ""
            is_selected = number + self._top_row == selected
            text = line.ljust(width) if is_selected else line
            text = output.paint(text, style, output.STDOUT) if style else text
            painted.append(f"\x1b[7m{text}\x1b[27m" if is_selected else text)
        return painted

    def _foot(self, width: int) -> list[str]:
        if self._is_typing:
            return [cut(f"filter: {escapes.plain(self._filter)}_", width)]
        if self._asks:
            return [cut("cancel this run? y: yes, any other key: no", width)]
        if self.page != "list":
            return [cut("any key: back", width)]
        told = f"filter: {escapes.plain(self._filter)}  " if self._filter else ""
        return [output.paint(cut(escapes.plain(self.message) or told + HELP, width), "dim", output.STDOUT)]

    def _rows(self, top: Top) -> Sequence[Mapping[str, Any]]:
        rows: Sequence[Mapping[str, Any]] = top["ranks"] if self._kind == "ranks" else top["nodes"]
        wanted = self._filter.lower()
        return [row for row in rows if wanted in _words(row)] if wanted else rows

    def _place(self, rows: Sequence[Mapping[str, Any]]) -> int:
        return next((place for place, row in enumerate(rows) if _number(row) == self._selected), 0)

    def _select(self, move: int) -> Mapping[str, Any] | None:
        """Select the row that many below the selected one. None: there are no rows."""
        if self._top is None or not (rows := self._rows(self._top)):
            return None
        row = rows[max(0, min(self._place(rows) + move, len(rows) - 1))]
        self._selected = _number(row)
        return row

    def _open_log(self) -> None:
        """Show the log of the selected rank, of a node its first one."""
        row = self._select(0)
        ranks = [] if row is None else row["ranks"] if self._kind == "nodes" else [row["rank"]]
        if ranks:
            self.page, self._rank = "log", ranks[0]

    # -- keys ---------------------------------------------------------------------------------------------------------

    def typed(self, keys: str) -> Action:
        """Obey the keys, and return what is to be done by others."""
        for key in _KEY.findall(keys):
            if action := self._typed(key):
                return action
        return ""

    def _typed(self, key: str) -> Action:
        if self._is_typing:
            self._type(key)
        elif self._asks:
            self._asks = False
            return "cancel" if key == "y" else ""
        elif self.page != "list":
            self.page = "list"
        else:
            self.message = ""
            return self._key(key)
        return ""

    def _type(self, key: str) -> None:
        if key in "\r\n\x1b":
            self._is_typing = False
            self._filter = "" if key == "\x1b" else self._filter
        elif key in "\x7f\b":
            self._filter = self._filter[:-1]
        elif key.isprintable():
            self._filter += key

    def _key(self, key: str) -> Action:
        if key in _MOVES:
            self._select(_MOVES[key])
        elif key == "n":
            self._kind = "nodes" if self._kind == "ranks" else "ranks"
            self._selected = None
        elif key == "/":
            self._is_typing, self._filter = True, ""
        elif key in ("\r", "\n", "l"):
            self._open_log()
        elif key == "c":
            self._asks = True
        elif key == "s":
            return "stacks"
        return "quit" if key in _QUIT else ""


def quits(typed: str) -> bool:
    """Whether one of these keys ends `top`."""
    return any(key in _QUIT for key in _KEY.findall(typed))


def _number(row: Mapping[str, Any]) -> int:
    """The row's rank, of a node's row the node."""
    number: int = row["rank"] if "rank" in row else row["node"]
    return number


def _title(top: Top) -> str:
    detail = f" ({top['detail']})" if top["detail"] else ""
    restarts = max((node["restarts"] for node in top["nodes"]), default=0)
    again = f", restarts {restarts}" if restarts else ""
    return escapes.plain(
        f"{top['run']}: {top['state']}{detail}, nodes {len(top['nodes'])}, ranks {len(top['ranks'])}{again}"
    )


def _bar(top: Top, width: int) -> str:
    """`[####....] `; empty if the total is not known, or the terminal is narrow."""
    progress, cells = top["progress"], min(24, width // 5)
    if progress is None or not progress["steps"] or cells < 10:
        return ""
    full = min(cells, cells * progress["step"] // progress["steps"])
    return f"[{'#' * full}{'.' * (cells - full)}] "


def _log(tail: bytes, room: int, width: int) -> list[str]:
    """The last lines of a rank's output; of a progress bar, its last state."""
    lines = [line.rstrip(b"\r").rpartition(b"\r")[2] for line in tail.split(b"\n")]
    lines = lines[:-1] if lines and not lines[-1] else lines
    return [cut(escapes.plain(line.decode(errors="replace")), width) for line in lines[max(0, len(lines) - room) :]]


def _words(row: Mapping[str, Any]) -> str:
    """What a filter looks at."""
    where = f"rank {row['rank']}" if "rank" in row else ""
    return f"{where} node {row['node']} {row['host']} {row['state']} {row['odd']} {row.get('last_line', '')}".lower()
