"""Which files of the project import which: found in their syntax trees, and searched for circles."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Import(NamedTuple):
    """A file's import of another file of the project: at its top, in a function, or only for type checkers."""

    path: Path
    line: int
    target: Path

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.target}"


def files(pattern: str, root: Path = ROOT) -> list[Path]:
    """Files of the project; it is an error if there are none."""
    found = sorted(root.glob(pattern))
    assert found, pattern
    return found


@cache
def named(path: Path) -> list[tuple[str, tuple[str, ...], int, int]]:
    """Every import in a file: module, names, level of a relative one, line."""
    found: list[tuple[str, tuple[str, ...], int, int]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, (), 0, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.module or "", tuple(alias.name for alias in node.names), node.level, node.lineno))
    return found


def resolved(path: Path, root: Path = ROOT) -> list[Import]:
    """Its imports of files below `root`; scripts of `train` find their modules beside them."""
    found = []
    own = path.relative_to(root)
    for module, names, level, line in named(path):
        steps = [*own.parts[: len(own.parts) - level]] if level else []
        for tops in ([], [own.parts[0]] if own.parts[0] == "train" and not level else None):
            if tops is None:
                continue
            base = root.joinpath(*tops, *steps, *filter(None, module.split(".")))
            for name in names or ("",):
                target = next((place for place in places(base, name) if place.is_file()), None)
                if target is not None:
                    found.append(Import(own, line, target.relative_to(root)))
    return found


def places(base: Path, name: str) -> list[Path]:
    """Where `from base import name` may find it: in a module of that name, or in `base` itself."""
    inner = base / name
    return [
        *([inner.with_suffix(".py"), inner / "__init__.py"] if name else []),
        base.with_suffix(".py"),
        base / "__init__.py",
    ]


@cache
def imports_within(tree: str) -> list[Import]:
    """All imports of files of a tree within that tree; it is an error if there are none."""
    found = [each for path in files(f"{tree}/**/*.py") for each in resolved(path) if each.target.parts[0] == tree]
    assert found, tree
    return found


def package(path: Path) -> Path:
    """The directory that a file belongs to. A file beside packages, as at the top of a tree, counts by itself."""
    beside = (ROOT / path.parent).glob("*/__init__.py")
    return path if any(beside) else path.parent


def circle(imports: list[Import], *, packages: bool) -> list[Import]:
    """A path by imports from a file, or from a package, back to itself; empty: there is none."""
    arrows: dict[Path, list[Import]] = defaultdict(list)
    for each in imports:
        start, end = (package(each.path), package(each.target)) if packages else (each.path, each.target)
        if start != end:
            arrows[start].append(each)
    done: set[Path] = set()
    way: list[Import] = []
    places: list[Path] = []

    def search(place: Path) -> list[Import]:
        places.append(place)
        for each in arrows[place]:
            target = package(each.target) if packages else each.target
            if target in places:
                return [*way[places.index(target) :], each]
            if target not in done:
                way.append(each)
                if found := search(target):
                    return found
                way.pop()
        done.add(places.pop())
        return []

    for place in sorted(arrows):
        if place not in done and (found := search(place)):
            return found
    return []
