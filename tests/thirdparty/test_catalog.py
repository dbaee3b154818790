"""The list of the public's scripts is consistent, and is the one in the documentation."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.command import ROOT
from tests.pages import table
from tests.plugins import rotation
from tests.thirdparty import test_clusters, test_in_place_of_torchrun, test_local
from tests.thirdparty.catalog import SCRIPTS, SDISTS, two
from tests.thirdparty.environment import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Mapping

WAYS: Mapping[str, Any] = {
    "local": test_local.test_results_are_those_under_torchrun,
    "torchrun": test_in_place_of_torchrun.test_results_are_the_same,
    "slurm": test_clusters.test_results_on_slurm_are_the_same,
    "ansible": test_clusters.test_results_over_ssh_are_the_same,
    "k8s": test_clusters.test_results_on_kubernetes_are_the_same,
}
"""The tests that run each script, by command."""


def test_the_documentation_lists_all_scripts() -> None:
    rows = table((ROOT / "docs/thirdparty.md").read_text("utf-8"))

    assert rows[len(WAYS) :] == [
        [f"`{each.name}`", each.package, f"`{each.started}`", each.compared] for each in SCRIPTS
    ]


def test_each_script_runs_in_each_documented_way() -> None:
    rows = table((ROOT / "docs/thirdparty.md").read_text("utf-8"))[: len(WAYS)]

    assert {(row[0], row[2]) for row in rows} == {
        (f"`distlaunch {way}`", f"`{Path(test.__code__.co_filename).name}`") for way, test in WAYS.items()
    }
    for test in WAYS.values():
        (parameters,) = [mark.args for mark in test.pytestmark if mark.name == "parametrize"]
        assert parameters == ("script", SCRIPTS)


def test_every_version_is_pinned_and_torch_comes_from_the_tests_environment() -> None:
    lines = {packages: path.read_text("utf-8").split() for packages, path in PACKAGES.items()}
    names = {packages: {line.partition("==")[0] for line in found} for packages, found in lines.items()}

    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for found in lines.values() for line in found)
    assert not {"torch", "torchvision", "triton"} & set().union(*names.values())
    assert {script.packages for script in SCRIPTS} == set(names)
    assert [script.name for script in SCRIPTS if script.package not in names[script.packages]] == []
    assert {name.partition("==")[0] for name in SDISTS} <= {script.package for script in SCRIPTS if script.source}
    assert all(re.fullmatch(r"[0-9a-f]{64}", sha) for sha in (*SDISTS.values(), *(script.sha256 for script in SCRIPTS)))


def test_a_package_has_one_version_in_all_environments() -> None:
    lines = {line for path in PACKAGES.values() for line in path.read_text("utf-8").split()}

    assert len(lines) == len({line.partition("==")[0] for line in lines})


def test_scripts_have_different_names_and_each_has_output_that_counts() -> None:
    assert len({script.name for script in SCRIPTS}) == len(SCRIPTS)
    assert all(script.prints and script.times > 0 for script in SCRIPTS)


def test_no_script_is_copied_into_this_repository() -> None:
    ours = {hashlib.sha256(path.read_bytes()).hexdigest() for path in Path(__file__).parents[1].rglob("*.py")}

    assert not ours & {script.sha256 for script in SCRIPTS}


def test_each_commit_runs_two_scripts_and_in_the_end_all_have_their_turn() -> None:
    turns = [two(number) for number in range(2 * len(SCRIPTS))]

    assert all(len({script.name for script in turn}) == 2 for turn in turns)
    assert all(sum(script.heavy for script in turn) == number % 2 for number, turn in enumerate(turns))
    assert {script.name for turn in turns for script in turn} == {script.name for script in SCRIPTS}
    assert rotation.turn() == rotation.turn()
