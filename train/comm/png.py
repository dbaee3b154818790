"""The pictures of `show` as PNG; needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from matplotlib.figure import Figure  # without pyplot: it needs no display

if TYPE_CHECKING:
    from comm.links import Limit
    from comm.pairs import Matrix
    from comm.timing import Row


def plot(path: str, rows: Sequence[Row], limit: Limit | None, title: str) -> None:
    """Busbw over size on logarithmic axes, with the limit as a dashed line."""
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    for name in dict.fromkeys(row.operation for row in rows):
        own = [row for row in rows if row.operation == name and row.busbw > 0]
        axes.plot([row.size_bytes for row in own], [row.busbw for row in own], marker=".", label=name)
    if limit:
        axes.axhline(limit.gbytes_per_s, color="black", linestyle="--", label=f"{limit.gbytes_per_s:g}: {limit.what}")
    axes.set_xscale("log", base=2)
    if limit or any(row.busbw > 0 for row in rows):  # a single rank's busbw is 0
        axes.set_yscale("log")
    axes.set(xlabel="size, bytes", ylabel="busbw, GB/s", title=title)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")
    figure.savefig(path, dpi=120)


def heat_map(path: str, matrix: Matrix, title: str) -> None:
    """Bandwidth on the left, latency on the right; dark is good in both."""
    count = len(matrix.names)
    figure = Figure(figsize=(2 * max(5, count * 0.35), max(4, count * 0.35)), layout="constrained")
    figure.suptitle(title)
    microseconds = [[time_s * 1e6 for time_s in row] for row in matrix.latency_s]
    pictures: list[tuple[str, list[list[float]], str]] = [
        ("bandwidth, GB/s", matrix.gbytes_per_s, "Blues"),
        ("latency, us", microseconds, "Blues_r"),
    ]
    columns: Any = figure.subplots(1, 2)
    for axes, (what, values, colours) in zip(columns, pictures):  # noqa: B905 - Python 3.9
        shown = [[float("nan") if a == b else value for b, value in enumerate(row)] for a, row in enumerate(values)]
        figure.colorbar(axes.imshow(shown, cmap=colours), ax=axes)
        axes.set(title=what)
        axes.set_xticks(range(count), matrix.names, rotation=90)
        axes.set_yticks(range(count), matrix.names)
    figure.savefig(path, dpi=120)
