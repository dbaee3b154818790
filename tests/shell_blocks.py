"""The lines of the documentation's shell blocks, by the way in which tests run them, and how they are made smaller."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.command import ROOT
from tests.tutorial import PAGES, form

WAYS = {
    "here": r"(scripts/)?distlaunch local ",
    "on a cluster": r"distlaunch (slurm|ansible|k8s) ",
    "through a login node": r"distlaunch (login (juno|hall)|run --on (juno|hall) )",
    "doctor": r"distlaunch doctor --on lab ",
    "after a run": r"distlaunch status last; ",
    "without the launcher": r"(torchrun|python train/)",
    "benchmark": r"\.venv/bin/python benchmarks/",
    "tests": r"scripts/test\b",
    "lint": r"scripts/(lint|prose|schema|docs build|docs serve)$",
    "other versions": r"scripts/matrix\b",
    "testbed": r"python -m testbed up ",
    "testbed's own": r"python -m testbed (build|clean)$",
    "in a testbed": r"(export SLURM_CONF=|srun |ssh -F |ansible --inventory )",
    "an extra": r"pip install '\.\[\w+\]'$",
    "to compare with": r"uv pip install --python \.venv torchx$",
    "by hand": r"sh DIR/(start|status|collect|stop)\.sh( |$)",
}
"""What a line looks like, by the way in which it is run."""

LESS = {
    "train.py": "--epochs 1 --samples 64 --batch-size 4 --image-shape 3x32x32 --model resnet18",
    "train.py on digits": "--epochs 1",
    "collectives.py": "--min-size 1K --max-size 1K --seconds 0.01 --warmup 1",
    "collectives.py --lesson": "--max-size 64K",
    "reduce.py": "",
}
"""What is added to a script's arguments, where the last ones count."""


class Line(NamedTuple):
    """One line of a shell block, without its comment."""

    file: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.text}"


def documented() -> list[Line]:
    """All lines of all blocks; of a terminal session those that were typed. Tutorials have tests of their own."""
    found = []
    for path in sorted({ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")} - {*PAGES}):
        for kind, block in re.findall(
            r"^```(bash|sh|shell|console)\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL
        ):
            typed = [
                line.removeprefix("$ ") for line in block.splitlines() if kind != "console" or line.startswith("$ ")
            ]
            lines = [re.sub(r"(^|\s+)#.*", "", line).strip() for line in typed]
            found += [Line(str(path.relative_to(ROOT)), line) for line in lines if line]
    return list(dict.fromkeys(found))


def ways_of(line: Line) -> list[str]:
    return [way for way, pattern in WAYS.items() if re.match(pattern, line.text)]


def lines(way: str) -> list[Line]:
    return [line for line in documented() if way in ways_of(line)]


def every(way: str) -> pytest.MarkDecorator:
    """Run a test with each line that is run in this way."""
    once = {line.text: line for line in lines(way)}
    return pytest.mark.parametrize("line", once.values(), ids=once)


def smaller(words: list[str], workers: int = 2) -> list[str]:
    """The same with at most `workers` workers on a node, and less to do."""
    script = next(index for index, word in enumerate(words) if word.endswith(".py"))
    ours, args = list(words[:script]), words[script + 1 :]
    if "--nproc-per-node" in ours:
        where = ours.index("--nproc-per-node") + 1
        ours[where] = str(min(workers, int(ours[where])))
    name = Path(words[script]).name
    if name == "train.py" and "--data" not in args:
        name += " on digits"
    elif "--lesson" in args:
        name += " --lesson"
    return [*ours, words[script], *args, *LESS[name].split()]


def shown_of(line: Line) -> list[str]:
    """What a terminal session shows after that command, in the form of a run on this host; empty for others."""
    text = (ROOT / line.file).read_text("utf-8")
    shown = re.findall(rf"^```console\n\$ {re.escape(line.text)}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return form(re.sub(r"\bvm\b", socket.gethostname(), shown[0])) if shown else []
