"""`scripts/mutate`: what it changes, which tests it runs, and that it leaves nothing behind."""

from __future__ import annotations

import json
import marshal
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from testbed.waiting import wait_until
from tests.mutation import choice
from tests.mutation.__main__ import main, parser
from tests.mutation.changes import changes, compiles
from tests.mutation.copies import Copy
from tests.mutation.trial import Trial
from tests.plugins import measure
from tests.plugins.subjects import ROOT


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("if a < b:\n    f()\n", {"if (not (a < b)):\n    f()\n", "if a <= b:\n    f()\n", "if a < b:\n    pass\n"}),
        ("x = y if 'ü' not in z else w\n", {"x = y if (not ('ü' not in z)) else w\n", "x = y if 'ü' in z else w\n"}),
        ("def f():\n    'ü'; return a and b\n", {
            "def f():\n    'ü'; return None\n", "def f():\n    'ü'; return a or b\n",
        }),
        ("def f() -> int:\n    x: int = 3\n", {"def f() -> int:\n    x: int = 4\n"}),
        ("z = [x for x in y if x]\n", {"z = [x for x in y if (not (x))]\n"}),
        ("z = not a\n", {"z = a\n"}),
        ("z = a + b\n", {"z = a - b\n"}),
        ("z = True\n", {"z = False\n"}),
        ("while a is not None:\n    break\n", {
            "while (not (a is not None)):\n    break\n",
            "while a is None:\n    break\n", "while a is not None:\n    pass\n",
        }),
        ("try:\n    f()\nexcept E:\n    raise X from None\n", {
            "try:\n    pass\nexcept E:\n    raise X from None\n", "try:\n    f()\nexcept E:\n    pass\n",
        }),
    ],
)  # fmt: skip
def test_each_change_replaces_one_piece_of_the_text(source: str, wanted: set[str]) -> None:
    assert {change.apply(source.encode()).decode() for change in changes("x.py", source.encode())} == wanted
    assert all(compiles(text.encode()) for text in wanted)


@pytest.mark.parametrize(
    "source",
    [
        "'''A text.'''\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import x\n",
        "LIMIT_S = 60\n",
        "run(timeout_s=60)\n",
        "def f(x=3): ...\n",
        "assert x > 3\n",
        "say = f'{x + 1} of {y}'\n",
        "z = 'a' + b\n",
        "x: list[int]\n",
    ],
)
def test_what_no_test_could_notice_is_left_alone(source: str) -> None:
    assert changes("x.py", source.encode()) == []


def test_the_same_seed_chooses_the_same_changes_and_a_larger_count_adds_to_them() -> None:
    paths = ["launcher/runs/outcome.py", "launcher/agent/node/stops.py"]
    assert (
        choice.choose(paths, 20, 1, ROOT)[:10] == choice.choose(paths, 10, 1, ROOT) != choice.choose(paths, 10, 2, ROOT)
    )

    chosen = choice.choose(choice.PATHS, 300, 1, ROOT)

    assert len({(change.path, change.line) for change in chosen}) == 300
    directories = {"/".join(change.path.split("/")[:2]) for change in chosen}
    assert {"launcher/agent", "launcher/backends", "train/trainer"} <= directories


def a_map(directory: Path, ran: dict[str, list[int]], path: str) -> Path:
    """Write a map as if these tests had run these lines of a file."""
    measure.prepare(directory, by_test=True)
    offset = marshal.loads((directory / "index").read_bytes())["offsets"][path]
    for test, lines in ran.items():
        data = bytearray((directory / "lines").read_bytes())
        for line in lines:
            data[offset + line] = 1
        (directory / "tests" / measure.key_of(test)).write_bytes(data)
    (directory / "names.json").write_text(json.dumps({measure.key_of(test): test for test in ran}))
    return directory


def test_the_tests_that_ran_the_line_are_chosen_the_shortest_first(tmp_path: Path) -> None:
    path = "launcher/runs/outcome.py"
    change = choice.choose([path], 1, 1, ROOT)[0]
    known = choice.Map.read(
        a_map(tmp_path, {"a": [change.line], "b": [change.line], "c": [1], "gone": [change.line]}, path)
    )

    assert choice.tests_for(change, known, ["a", "b", "c"], {"a": 3.0, "b": 1.0}) == ["b", "a"]
    nowhere = change._replace(line=10**6, last_line=10**6)  # like lines that run only when the file is imported
    assert choice.tests_for(nowhere, known, ["a", "b", "c"], {"a": 3, "b": 1, "c": 2}) == ["b", "c", "a"]
    # The lines of a fixture are recorded only for the first test of a file that uses it.
    shared = ["b.py::one", "a.py::two", "a.py::one", "c.py::one"]
    of_a_fixture = choice.Map({"a.py::two": {path: {change.line}}})
    assert choice.tests_for(change, of_a_fixture, shared, {"a.py::two": 9.0}) == ["a.py::two", "a.py::one"]
    every = ["tests/runs/test_outcome.py::test_x", "tests/plugins_tests/test_summary.py::test_y"]
    assert choice.tests_for(change, None, every, {}) == every[:1]


def left() -> set[str]:
    """The copies of the project that are there."""
    return {path.name for path in Path(tempfile.gettempdir()).glob("distlaunch-mutants-*")}


def test_a_change_is_noticed_by_its_test_or_survives_and_the_copy_is_restored(tmp_path: Path) -> None:
    test = "tests/slurm/test_hostlist.py::test_the_place_of_a_node_comes_from_slurms_variables"
    path, other = "launcher/agent/schedulers/slurm.py", "launcher/doctor/heat_map.py"
    source = (ROOT / path).read_bytes()
    wrong = next(each for each in changes(path, source) if b"hosts.index(name), hosts" in source[each.start : each.end])
    elsewhere = changes(other, (ROOT / other).read_bytes())[0]
    known = choice.Map({test: {path: {wrong.line}, other: {elsewhere.line}}})
    copy = Copy(tmp_path / "copy")
    trial = Trial(parser().parse_args([]), known, {})
    trial.every = [test]

    verdicts = [trial.run(copy, change) for change in (wrong, elsewhere)]
    trial.every = []
    verdicts.append(trial.run(copy, wrong))
    copy.close()

    assert [(verdict.noticed, verdict.by) for verdict in verdicts] == [
        (True, test),
        (False, "survives 1 tests"),
        (False, "no test runs it"),
    ]
    assert (copy.root / path).read_bytes() == source == (ROOT / path).read_bytes()


def test_a_test_that_fails_without_any_change_does_not_count(tmp_path: Path) -> None:
    test = "tests/slurm/test_hostlist.py::test_ranks_follow_the_numbers_in_names_and_the_leaf_switches"
    path, fine = "launcher/agent/schedulers/slurm.py", "launcher/doctor/heat_map.py"
    change = changes(fine, (ROOT / fine).read_bytes())[0]
    copy = Copy(tmp_path / "copy")
    (copy.root / path).write_text("raise ImportError('broken before')\n")
    trial = Trial(parser().parse_args([]), choice.Map({test: {fine: {change.line}}}), {})
    trial.every = [test]

    verdict = trial.run(copy, change)
    copy.close()

    assert not verdict.noticed


def test_changes_can_be_tried_again_by_their_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "9", "--list"]) == 0
    nine = capsys.readouterr().out.splitlines()
    assert main(["--count", "9", "--list", "--only", "8", "3"]) == 0

    assert [line.split()[0] for line in nine] == [str(number) for number in range(1, 10)]
    assert capsys.readouterr().out.splitlines() == [nine[7], nine[2]]


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    before = left()
    path = "launcher/runs/outcome.py"
    argv = (
        sys.executable,
        "-m",
        "tests.mutation",
        "--count=3",
        f"--paths={path}",
        f"--coverage={a_map(tmp_path, {}, path)}",
    )
    process = subprocess.Popen(
        argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        wait_until("a copy to be there", lambda: left() - before or process.poll() is not None, limit_s=120)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()

    assert process.returncode == 130
    assert "nothing is left" in errors
    assert left() <= before
