"""`scripts/picture`: README's picture, drawn from the output of a real run on this host."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/run.svg"

SCRIPT = """\
import os, time

rank = int(os.environ["RANK"])
files = ["a.bin", "b.bin", "c.bin"]
time.sleep(rank / 4)
print(f"rank {rank} reads {files[rank]}")
"""
"""Four workers, three files: the last rank fails when the others have finished."""

WORDS = ("local", "--nodes", "2", "--nproc-per-node", "2", "--log-ranks", "all", "read.py")

_ROW, _CHARACTER, _MARGIN = 19, 8.0, 16
_COLORS = (
    (r"\$ ", "#ffffff"),
    (r"(failed|success) after|  the script failed", "#ff7b72"),
    (r"  first failure", "#ffa657"),
    (r"\[\d+:\d+\]", "#79c0ff"),
)
_PLAIN = "#c9d1d9"


def lines() -> list[str]:
    """The command and its output, without the names of this host and its directories."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "read.py").write_text(SCRIPT)
        argv = (sys.executable, "-m", "launcher", *WORDS)
        env = {"PATH": "/usr/bin:/bin", "HOME": directory, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
        done = subprocess.run(argv, cwd=directory, env=env, capture_output=True, text=True, timeout=120)
        text = (done.stderr + done.stdout).replace(directory, "/home/me")
    return [
        f"$ distlaunch {' '.join(WORDS)}",
        *ordered(re.sub(rf"\b{re.escape(socket.gethostname())}\b", "vm", text).splitlines()),
    ]


def ordered(shown: list[str]) -> list[str]:
    """Put lines of the workers' stdout where they were on the terminal: before the end. Remove marks below code."""
    shown = [line for line in shown if not re.fullmatch(r"(\[\d:\d\] )?[\s~^]+", line)]
    printed = [line for line in shown if re.match(r"\[\d:\d\] rank", line)]
    rest = [line for line in shown if line not in printed]
    start = next(index for index, line in enumerate(rest) if line.startswith("["))
    return rest[:start] + printed + rest[start:]


def drawn(shown: list[str]) -> str:
    """The SVG, with one text per line."""
    width, height = max(map(len, shown)) * _CHARACTER + 2 * _MARGIN, len(shown) * _ROW + 2 * _MARGIN + 8
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" width="{width:g}" height="{height}">'
    )
    style = 'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13" xml:space="preserve"'
    rows = [
        f'<text x="{_MARGIN}" y="{_MARGIN + _ROW * number}" fill="{color(line)}">{escape(line)}</text>'
        for number, line in enumerate(shown, 1)
    ]
    title = (
        "<title>A run on two nodes fails; distlaunch names the first cause with its rank, host and traceback</title>"
    )
    return "\n".join(
        (
            head,
            title,
            '<rect width="100%" height="100%" rx="8" fill="#0d1117"/>',
            f"<g {style}>",
            *rows,
            "</g>",
            "</svg>",
            "",
        )
    )


def color(line: str) -> str:
    """The color of a line."""
    return next((code for pattern, code in _COLORS if re.match(pattern, line)), _PLAIN)


if __name__ == "__main__":
    PICTURE.write_text(drawn(lines()), "utf-8")
    sys.stdout.write(f"{PICTURE.relative_to(ROOT)} is drawn\n")
