"""What a failed test leaves is enough to fix it without running it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.plugins import failures

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.plugins_tests.conftest import Inner

TESTS = """
import json, os
import pytest


class Run:
    def __init__(self, directory):
        self.directory = directory


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shared")
    (directory / "stderr").write_text("the agent of the module's run\\n")
    return Run(directory)


def make(directory):
    node = directory / "runs/x-1/nodes/0"
    node.mkdir(parents=True)
    (node / "stream").write_text("".join(f"0.0| line {n}\\n" for n in range(100)))
    (node / "stderr").write_bytes(b"the agent said \\xff this\\n")
    (node.parents[1] / "run.json").write_text(json.dumps({"id": "x-1"}))
    (directory / "big.log").write_bytes(b"x" * 400_000 + b"the end")
    (directory / "secret.key").write_text("key")
    (directory / "pipe.log").symlink_to("/etc/passwd")
    os.mkfifo(directory / "fifo.log")


def test_fails(tmp_path, shared):
    make(tmp_path)
    print("printed by the test")
    assert 1 == 2


def test_passes(tmp_path):
    make(tmp_path)


@pytest.fixture
def broken(tmp_path):
    make(tmp_path)
    yield
    raise RuntimeError("at the end")


@pytest.mark.parametrize("how", ["a/b c", "a/b:c"])
def test_ends_badly(broken, how):
    pass
"""


def test_files_that_runs_wrote_are_kept_and_their_last_lines_are_printed(inner: Callable[..., Inner]) -> None:
    done = inner({"test_some.py": TESTS}, "-n2")

    assert done.code == 1
    assert done.lines[-1].startswith("=")
    assert "1 failed" in done.lines[-1]
    assert "2 errors" in done.lines[-1]
    kept = sorted(path.name for path in (done.results / "failures").iterdir())
    assert [name.partition("-")[0] for name in kept] == [
        "test_some.test_ends_badly_a_b_c",
        "test_some.test_ends_badly_a_b_c",
        "test_some.test_fails",
    ]
    directory = done.results / "failures/test_some.test_fails"
    assert str(directory) in done.text
    assert (directory / "files1/runs/x-1/run.json").read_text() == '{"id": "x-1"}' or (
        directory / "files/runs/x-1/run.json"
    ).exists()
    names = sorted(path.name for path in directory.rglob("*") if path.is_file())
    assert names == ["big.log", "call.txt", "run.json", "stderr", "stderr", "stream"]
    (big,) = directory.rglob("big.log")
    assert big.stat().st_size == failures.MAX_BYTES
    assert big.read_bytes().endswith(b"the end")
    report = (directory / "call.txt").read_text()
    assert "printed by the test" in report
    assert "assert 1 == 2" in report
    for text in (report, done.text):
        assert "the agent said \ufffd this" in text
        assert "the agent of the module's run" in text
        assert "0.0| line 99" in text
        assert "0.0| line 10\n" not in text


BREAKS = """
from tests.plugins import failures


def copy(*_):
    raise OSError("no room")


failures.copy = copy


def test_fails(tmp_path):
    (tmp_path / "stream").write_text("x")
    assert "this" == "the reason"
"""


def test_a_failure_is_reported_even_if_nothing_can_be_kept(inner: Callable[..., Inner]) -> None:
    done = inner({"test_some.py": BREAKS}, "-n0")

    assert done.code == 1
    assert "AssertionError: assert 'this' == 'the reason'" in done.text
    assert "could not be kept: OSError('no room')" in done.text


def test_directories_of_tests_with_similar_names_differ(tmp_path: Path) -> None:
    names = [
        "tests/a/test_x.py::test_y[a/b]",
        "tests/a/test_x.py::test_y[a b]",
        "tests/b/test_x.py::test_y[a b]",
        "tests/a/test_x.py::test_y",
    ]

    assert len({failures.place(tmp_path, name) for name in names}) == len(names)
    assert failures.place(tmp_path, "test_x.py::test_y[../../etc]").parent == tmp_path / "failures"
