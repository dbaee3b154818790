"""docs/start.md and the tutorials, played as by a reader: files are written, commands are run, output is compared."""

from __future__ import annotations

import re
import shlex
import socket
from typing import TYPE_CHECKING, NamedTuple

from tests.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.command import Result

PAGES = [ROOT / "docs/start.md", *sorted((ROOT / "docs/tutorials").glob("*.md"))]

SKIPPED = "..."
"""A line of a page that stands for any lines of output."""

EXIT_CODE = "echo $?"


class Block(NamedTuple):
    """A code block of a page."""

    kind: str
    title: str
    text: str


class Step(NamedTuple):
    """A command with what the page shows of its output; None: nothing is shown."""

    command: str
    shown: list[str] | None


def blocks(path: Path) -> list[Block]:
    """All code blocks of a page."""
    found = re.findall(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(*block) for block in found]


def steps(block: Block) -> list[Step]:
    """The commands of a shell block."""
    if block.kind == "bash":
        return [Step(line, None) for line in block.text.splitlines()]
    parts = block.text.removeprefix("$ ").split("\n$ ")
    return [Step(part.splitlines()[0], part.splitlines()[1:]) for part in parts]


def form(text: str) -> list[str]:
    """The lines, in any order, without what differs from run to run and from host to host.

    A host that is busy makes a wait so long that it is named, with its duration.
    """
    text = re.sub(r"^.* \(\d+ s\)\n", "", text, flags=re.MULTILINE)
    differs = {
        r"directory: \S+": "directory",
        r"\b[a-z]+-\d{8}-\d{6}-\w{4}": "RUN",
        r"[\d.]+ s\b": "TIME",
        r":\d+:": ":PORT:",
    }
    differs |= {r'"\S*/(\w+\.py)"': r'"\1"', r"(master [\d.]+):\d+": r"\1:PORT"}
    for pattern, word in differs.items():
        text = re.sub(pattern, word, text)
    return sorted(" ".join(line.split()) for line in text.splitlines())


def play(path: Path, run: Callable[..., Result], write: Callable[[str, str], object]) -> None:
    """Do what the page says. `run` gets the words after `distlaunch`; a block that cannot be played fails."""
    exit_code = 0
    for block in blocks(path):
        if block.title:
            write(block.title, block.text)
            continue
        assert block.kind in ("bash", "console"), block
        listed = steps(block)
        for index, (command, shown) in enumerate(listed):
            if command == EXIT_CODE:
                assert shown == [str(exit_code)], command
                continue
            program, *words = shlex.split(command)
            assert program == "distlaunch", command
            done = run(*words)
            exit_code = done.exit_code
            fails = listed[index + 1 :] and listed[index + 1].command == EXIT_CODE
            assert fails or exit_code == 0, f"{command}\n{done.stdout}{done.stderr}"
            if shown is not None:
                compare(command, shown, done.stdout + done.stderr)


def compare(command: str, shown: list[str], output: str) -> None:
    """Every line that is shown was printed; without `...`, all lines are shown."""
    is_here = re.sub(r"\bvm\b", socket.gethostname(), "\n".join(line for line in shown if line != SKIPPED))
    wanted, found = form(is_here), form(output)
    if SKIPPED in shown:
        assert [line for line in wanted if line not in found] == [], f"{command}\n{output}"
    else:
        assert wanted == found, f"{command}\n{output}"
