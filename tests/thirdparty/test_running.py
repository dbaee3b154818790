"""How the public's scripts are compared: which output counts, and why they may skip."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed.errors import NotAvailableError
from tests.plugins import summary
from tests.thirdparty import environment as environments
from tests.thirdparty import running
from tests.thirdparty.catalog import SCRIPTS
from tests.thirdparty.environment import Environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.thirdparty.running import Digits

ONE = "1065353216"
"""The bits of 1.0, as a number."""

PUBLISHED = """
import json, os
table = json.dumps({"weight": {"dtype": os.environ["DTYPE"], "shape": [1], "data_offsets": [0, 4]}}).encode()
print("loss", os.environ["LOSS"])
if os.environ["RANK"] == "0":
    with open("model.safetensors", "wb") as file:
        file.write(len(table).to_bytes(8, "little") + table + int(os.environ["BITS"]).to_bytes(4, "little"))
"""

SCRIPT = replace(SCRIPTS[0], prints=(r"loss (\S+)",), times=3, saves=())


def test_lines_are_assigned_to_ranks_and_those_of_the_launcher_do_not_count() -> None:
    text = running.shown("[0:0] loss 1\n[1:1] loss 2\n", "loss 9\n[0:0] loss 3\ndistlaunch: loss 9\n")

    found = running.collect(SCRIPT, Path("/nowhere"), text)

    assert found.printed == {"0": ["3", "1"], "1": ["2"]}


def test_a_run_that_has_printed_too_little_is_an_error() -> None:
    with pytest.raises(AssertionError, match="has printed 2 of what counts, not 3"):
        running.collect(SCRIPT, Path("/nowhere"), {"0": "loss 1\nloss 2", "1": ""})


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"has saved no out/\*\.pt"):
        running.saved(replace(SCRIPT, saves=("out/*.pt",)), tmp_path)


def test_a_script_with_another_hash_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "env-plain/lib/python3/site-packages" / SCRIPT.file
    path.parent.mkdir(parents=True)
    path.write_text("print('another one')")

    with pytest.raises(AssertionError, match="is another one"):
        running.check(SCRIPT, Environment(tmp_path, "plain"))


@pytest.mark.parametrize(
    ("errors", "may_skip"),
    [("error sending request for url", True), ("failed to lookup: dns error", True), ("No solution found", False)],
)
def test_in_ci_scripts_may_skip_only_if_packages_cannot_be_downloaded(errors: str, may_skip: bool) -> None:
    with pytest.raises(NotAvailableError) as raised:
        environments.MAKER.run(("sh", "-c", 'echo "$0" >&2; exit 1', errors))

    assert errors in str(raised.value)
    assert summary.is_unexpected(str(raised.value)) is not may_skip


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Digits]:
    """Run a script with two workers, which prints and saves what its variables say."""
    path = tmp_path / "env-plain/lib/python3/site-packages/published.py"
    path.parent.mkdir(parents=True)
    path.write_text(PUBLISHED, encoding="utf-8")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    script = replace(SCRIPT, file=path.name, sha256=sha256, args=(), times=2, saves=("model.safetensors",))

    def digits(pattern: str = r"loss (\S+)", **env: str) -> Digits:
        variables = {"LOSS": "0.5", "BITS": ONE, "DTYPE": "F32", **env}
        directory = tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}"
        launcher = (sys.executable, "-m", "launcher", "torchrun")
        return running.torchrun(
            replace(script, env=variables, prints=(pattern,)), Environment(tmp_path, "plain"), directory, launcher
        )

    return digits


def test_two_runs_that_do_the_same_have_the_same_results(run: Callable[..., Digits]) -> None:
    first = run()

    assert first.printed == {"0": ["0.5"], "1": ["0.5"]}
    assert run() == first


@pytest.mark.parametrize("other", [{"LOSS": "0.50000001"}, {"BITS": str(int(ONE) + 1)}, {"DTYPE": "I32"}], ids=str)
def test_a_digit_or_a_bit_that_differs_is_found(run: Callable[..., Digits], other: dict[str, str]) -> None:
    assert run(**other) != run()


def test_a_script_that_has_printed_nothing_that_counts_is_an_error(run: Callable[..., Digits]) -> None:
    with pytest.raises(AssertionError, match="has printed 0 of what counts, not 2"):
        run(pattern=r"accuracy (\S+)")
