"""The files and datasets that docs/training.md names are those of the trainer; its options: tests/train."""

from __future__ import annotations

import re

from tests.command import ROOT
from tests.pages import page, quoted, section, table


def test_ways_of_synchronizing_files_and_datasets_are_listed() -> None:
    (names,) = re.findall(r"^SYNCS = \((.*?)\)$", page("train/trainer/config.py"), re.MULTILINE | re.DOTALL)
    ways = [quoted(row[0])[0] for row in table(section("docs/training.md", "Ways of synchronising"))]
    assert ways == re.findall(r'"([\w-]+)"', names)
    files = {path.stem for path in (ROOT / "train/trainer").rglob("*.py")} - {"__init__"} | {"datasets"}
    assert {
        word for word in quoted(section("docs/training.md", "Layout")) if word.isidentifier() and word.islower()
    } == files
    data = " ".join(row[0] for row in table(section("docs/training.md", "Data")))
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "train/trainer/datasets").glob("*.py"))
    named = re.findall(r'^DATASETS = \(Dataset\(load, "(.+?)"|^    _small\("(.+?)"', sources, re.MULTILINE)
    assert {"digits", "imagenet", "cifar10"} < {"".join(names) for names in named} < set(quoted(data))
