"""What a test is about: its directory. Every test has exactly one subject."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[2]
TESTS = "tests"
RENAMED = {"ansible": "ssh", "testbed_tests": "testbed", "plugins_tests": "runner"}
"""Directories whose subject has another name."""

TOP = "project"
"""The subject of files outside these directories."""

TIERS = ("fast",)
CHANGED = "changed"

TYPICAL_S = {
    "agent": 1.0,
    "benchmarks": 11.0,
    "chaos": 4.5,
    "cli": 0.7,
    "fabric": 0.8,
    "frameworks": 8.0,
    "k8s": 0.4,
    "runner": 0.9,
    "slurm": 0.9,
    "ssh": 0.4,
    "testbed": 1.8,
    "thirdparty": 20.0,
    "train": 0.5,
    "project": 1.1,
}
"""How long a test takes that has not run yet; those of other subjects are short."""


def subject_of(path: str) -> str:
    """The subject of a test by its file, or by its id, relative to the top of the checkout."""
    parts = path.partition("::")[0].split("/")
    if parts[0] == TESTS:
        parts = parts[1:]
    return RENAMED.get(parts[0], parts[0]) if len(parts) > 1 else TOP


def typical_s(nodeid: str) -> float:
    """How long such a test takes, roughly."""
    return TYPICAL_S.get(subject_of(nodeid), 0.1)


def all_files(root: Path = ROOT) -> list[str]:
    """All test files, relative to the top of the checkout."""
    return sorted(str(path.relative_to(root)) for path in (root / TESTS).rglob("test_*.py"))


def known(root: Path = ROOT) -> list[str]:
    """All subjects."""
    return sorted({subject_of(path) for path in all_files(root)})


def files_of(subjects: Iterable[str], root: Path = ROOT) -> list[str]:
    """The test files of these subjects."""
    wanted = set(subjects)
    return [path for path in all_files(root) if subject_of(path) in wanted]


class Request(NamedTuple):
    """What `scripts/test` is to run."""

    tiers: tuple[str, ...]
    subjects: tuple[str, ...]
    changed: bool
    rest: tuple[str, ...]
    """Arguments for pytest."""


class UnknownWordError(Exception):
    """A word that is neither a tier, nor a subject, nor a path."""

    def __init__(self, word: str, subjects: Iterable[str]) -> None:
        self.word = word
        super().__init__(
            f"unknown word: {word}\n"
            f"usage: scripts/test [fast | changed | SUBJECT ...] [pytest's arguments]; no word: everything\n"
            f"subjects: {' '.join(subjects)}"
        )


def request(words: Iterable[str], root: Path = ROOT) -> Request:
    """Parse the words before the first option or path, which select tests; the rest is for pytest."""
    given = list(words)
    subjects = known(root)
    tiers: list[str] = []
    wanted: list[str] = []
    changed = False
    while given and not given[0].startswith("-") and not is_path(given[0], root):
        word = given.pop(0)
        if word == CHANGED:
            changed = True
        elif word in TIERS:
            tiers.append(word)
        elif word in subjects:
            wanted.append(word)
        else:
            raise UnknownWordError(word, subjects)
    return Request(tuple(tiers), tuple(wanted), changed, tuple(given))


def is_path(word: str, root: Path) -> bool:
    """Whether this is a file or a test rather than a word of this command."""
    name = word.partition("::")[0]
    return "::" in word or (("/" in name or name.endswith(".py")) and (root / name).exists())
