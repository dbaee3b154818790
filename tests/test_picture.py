"""README's picture shows what a run prints today."""

from __future__ import annotations

import re
from html import unescape

from tests import picture
from tests.tutorial import form


def test_the_picture_is_what_a_run_prints() -> None:
    drawn = [unescape(text) for text in re.findall(r"<text [^>]*>(.*)</text>", picture.PICTURE.read_text("utf-8"))]

    assert form("\n".join(drawn)) == form("\n".join(picture.lines())), "draw it anew: scripts/picture"
    assert [line for line in drawn if re.search(r"first failure: rank 3, host \w+, node 1", line)]


def test_the_figures_in_readme_are_those_of_the_benchmarks() -> None:
    """Worker count, both times and their ratio."""
    readme = (picture.ROOT / "README.md").read_text("utf-8")
    measured = (picture.ROOT / "docs/benchmarks.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d) workers? \| ([\d.]+) s \| ([\d.]+) s \| ([\d.]+) \|$", readme, re.MULTILINE)

    assert [row[0] for row in rows] == ["1", "8"]
    for workers, ours, theirs, ratio in rows:
        assert re.search(
            rf"^\| {workers} \| distlaunch \| {ours} \|.*\n\| \| torchrun \| {theirs} \|[^|]*\| {ratio} ",
            measured,
            re.MULTILINE,
        )
