"""`scripts/picture`: README's picture, drawn from what a real run on this machine shows."""

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
"""Four workers, three files: the last rank fails when the others have ended."""

WORDS = ("local", "--nodes", "2", "--nproc-per-node", "2", "--log-ranks", "all", "read.py")

_ROW, _CHARACTER, _MARGIN = 19, 8.0, 16
_COLOURS = (
    (r"\$ ", "#ffffff"),
    (r"(failed|success) after|  the script failed", "#ff7b72"),
    (r"  first failure", "#ffa657"),
    (r"\[\d+:\d+\]", "#79c0ff"),
)
_PLAIN = "#c9d1d9"


def lines() -> list[str]:
    """The command and what it shows, as on a machine of everybody's."""
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
    """What workers wrote on stdout stands where it did on the terminal: before the end of the run. Marks below code go."""
    shown = [line for line in shown if not re.fullmatch(r"(\[\d:\d\] )?[\s~^]+", line)]
    told = [line for line in shown if re.match(r"\[\d:\d\] rank", line)]
    rest = [line for line in shown if line not in told]
    start = next(index for index, line in enumerate(rest) if line.startswith("["))
    return rest[:start] + told + rest[start:]


def drawn(shown: list[str]) -> str:
    """The SVG; its texts are the lines."""
    width, height = max(map(len, shown)) * _CHARACTER + 2 * _MARGIN, len(shown) * _ROW + 2 * _MARGIN + 8
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" width="{width:g}" height="{height}">'
    style = 'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13" xml:space="preserve"'
    rows = [
        f'<text x="{_MARGIN}" y="{_MARGIN + _ROW * number}" fill="{colour(line)}">{escape(line)}</text>'
        for number, line in enumerate(shown, 1)
    ]
    title = "<title>A run on two nodes fails; distlaunch names the first cause with its rank, host and traceback</title>"
    return "\n".join(
        (head, title, '<rect width="100%" height="100%" rx="8" fill="#0d1117"/>', f"<g {style}>", *rows, "</g>", "</svg>", "")
    )


def colour(line: str) -> str:
    """What a line is."""
    return next((code for pattern, code in _COLOURS if re.match(pattern, line)), _PLAIN)


if __name__ == "__main__":
    PICTURE.write_text(drawn(lines()), "utf-8")
    sys.stdout.write(f"{PICTURE.relative_to(ROOT)} is drawn\n")
