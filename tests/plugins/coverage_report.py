"""Coverage by package, of one run or several: `python -m tests.plugins.coverage_report DATA[@CHECKOUT] ...`.

DATA is the directory `coverage` of a run, or files of coverage.py or a directory of them. CHECKOUT has the sources with
which it was measured.
"""

from __future__ import annotations

import io
import marshal
import sys
from collections import defaultdict
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.plugins.subjects import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import coverage

DIRECTORIES = ("launcher", "train", "playbooks")
PACKAGES = ("launcher.agent", "launcher.backends", "launcher.cli", "launcher", "train.trainer", "train", "playbooks")
"""A file counts for the first one that it is in."""

_AGENT = "distlaunch_agent/"

Lines = dict[str, set[int]]
"""Lines that ran, by file, relative to the top of the checkout."""


class Measured(NamedTuple):
    """How many statements each file has, how many of them ran, and which did not."""

    statements: Mapping[str, int]
    ran: Mapping[str, int]
    missing: Mapping[str, str]


def sources(root: Path = ROOT) -> list[str]:
    """The files that are measured."""
    found = (path for directory in DIRECTORIES for path in (root / directory).rglob("*.py"))
    return sorted(str(path.relative_to(root)) for path in found)


def package_of(path: str) -> str:
    """The package that a file counts for."""
    dotted = path.replace("/", ".")
    return next((name for name in PACKAGES if dotted.startswith(f"{name}.")), dotted.partition(".")[0])


def read(directory: Path) -> Lines:
    """The lines of all tests of a run."""
    found: Lines = defaultdict(set)
    for each in [directory / "lines", *(directory / "tests").glob("*")]:
        for path, lines in read_one(directory, each).items():
            found[path] |= lines
    return found


def read_one(directory: Path, lines: Path) -> Lines:
    """One file of lines."""
    index = marshal.loads((directory / "index").read_bytes())
    data = lines.read_bytes()
    bounds = sorted((offset, path) for path, offset in index["offsets"].items())
    ends = [*(offset for offset, _ in bounds[1:]), index["size"]]
    return {
        path: {line for line, flag in enumerate(data[start:end]) if flag}
        for (start, path), end in zip(bounds, ends, strict=True)
    }


def read_foreign(path: Path, root: Path) -> Lines:
    """The lines in files of coverage.py, which are not changed."""
    from coverage import CoverageData
    from coverage.exceptions import DataError

    found: Lines = defaultdict(set)
    files = sorted(path.glob("data.*")) if path.is_dir() else [path]
    for file in files:
        data = CoverageData(basename=str(file))
        try:
            data.read()
        except DataError as error:  # its process was killed while it wrote the file
            print(f"left out: {error}", file=sys.stderr)
            continue
        for name in data.measured_files():
            place = relative(name, root)
            if place:
                found[place].update(data.lines(name) or ())
        data.close()
    return found


def relative(name: str, root: Path) -> str:
    """A file relative to the top of the checkout; a file of the agent is the one that it was packed from."""
    if _AGENT in name:
        return f"launcher/agent/{name.rpartition(_AGENT)[2]}"
    return str(Path(name).relative_to(root)) if Path(name).is_relative_to(root) else ""


def measure(lines: Lines, root: Path = ROOT) -> Measured:
    """Turn lines that ran into statements; files that never ran count too."""
    import coverage

    cov = coverage.Coverage(data_file=None, config_file=False)
    cov.get_data().add_lines({str(root / path): sorted(numbers) for path, numbers in lines.items() if numbers})
    statements, ran, missing = {}, {}, {}
    for path in sources(root):
        _, known, _, left, shown = analysis(cov, root / path)
        if known:
            statements[path], ran[path], missing[path] = len(known), len(known) - len(left), shown
    return Measured(statements, ran, missing)


def analysis(cov: coverage.Coverage, path: Path) -> tuple[str, list[int], list[int], list[int], str]:
    """coverage.py's analysis of a file, without what it would print."""
    with redirect_stdout(io.StringIO()):
        return cov.analysis2(str(path))


def totals(measured: Measured) -> dict[str, tuple[int, int]]:
    """Numbers of statements that ran, and of all, by package."""
    found = dict.fromkeys(sorted(PACKAGES), (0, 0))
    for path, number in measured.statements.items():
        ran, known = found[package_of(path)]
        found[package_of(path)] = (ran + measured.ran[path], known + number)
    return found


def table(runs: Sequence[Measured]) -> list[str]:
    """A line per package; with several runs also the difference between the first and the last."""
    sums = [totals(run) for run in runs]
    for each in sums:
        each["all"] = (sum(ran for ran, _ in each.values()), sum(known for _, known in each.values()))
    lines = []
    for name in sums[0]:
        shares = [100 * ran / known if known else 100.0 for ran, known in (each[name] for each in sums)]
        cells = [
            f"{ran:6d} of {known:6d}  {share:5.1f} %"
            for (ran, known), share in zip((each[name] for each in sums), shares, strict=True)
        ]
        cells += [f"{shares[-1] - shares[0]:+6.1f}"] if len(sums) > 1 else []
        lines.append(f"{name:18s} {'   '.join(cells)}")
    return lines


def by_file(measured: Measured) -> str:
    """Each file, with the lines that did not run."""
    rows = []
    for path, number in sorted(measured.statements.items()):
        ran = measured.ran[path]
        rows.append(
            f"{path:55s} {ran:5d} of {number:5d}  {100 * ran / number:5.1f} %  {measured.missing[path]}".rstrip()
        )
    return "\n".join([*rows, ""])


def load(word: str) -> Measured:
    """A run, as it is given on the command line."""
    data, _, checkout = word.partition("@")
    path, root = Path(data), Path(checkout or ROOT).resolve()
    if (path / "index").exists():
        return measure(read(path), root)
    return measure(read_foreign(path, root), root)


def main(words: Iterable[str]) -> int:
    """Print the table."""
    given = list(words)
    if not given or given[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    print("\n".join(table([load(word) for word in given])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
