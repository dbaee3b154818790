"""A function on all ranks, and what comes back."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import distlaunch
from distlaunch import _call

if TYPE_CHECKING:
    from pathlib import Path


def add(left: int, right: int = 1) -> tuple[int, int]:
    import os

    return int(os.environ["RANK"]), left + right


def fails_on_one() -> None:
    import os

    if os.environ["RANK"] == "1":
        raise LookupError("not here")
    import time

    time.sleep(600)


class StubbornError(Exception):
    """Cannot be restored from its pickle."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("stubborn")


def is_stubborn() -> None:
    raise StubbornError(1, 2)


@pytest.mark.parametrize("by", ["pickle", "source"])
def test_what_ranks_return_comes_back_by_rank(here: Path, by: Any) -> None:
    assert distlaunch.call(add, (2,), {"right": 3}, by=by, nodes=2, nproc_per_node=2) == [
        (rank, 5) for rank in range(4)
    ]


def test_closures_and_lambdas_travel_by_cloudpickle_and_not_as_source(here: Path) -> None:
    factor = 3

    assert distlaunch.call(lambda number: number * factor, (4,)) == [12]
    assert distlaunch.call(partial(add, 4)) == [(0, 5)]
    for function in (lambda number: number * factor, partial(add, 4)):
        with pytest.raises(distlaunch.SpecError, match="cannot be sent as source"):
            distlaunch.call(function, by="source")


@pytest.mark.parametrize("by", ["pickle", "source"])
def test_an_exception_comes_back_as_one_with_rank_and_host(here: Path, by: Any) -> None:
    with pytest.raises(
        distlaunch.WorkerError, match=f"rank 1 on {os.uname().nodename}: LookupError: not here"
    ) as caught:
        distlaunch.call(fails_on_one, by=by, nproc_per_node=2)

    error = caught.value
    assert (error.rank, error.host, error.result.state) == (1, os.uname().nodename, "failed")
    assert isinstance(error.__cause__, LookupError)
    assert error.__cause__.args == ("not here",)
    assert "fails_on_one" in error.traceback
    assert error.traceback.endswith("LookupError: not here\n")


def test_an_exception_that_cannot_be_sent_is_reported_as_text(here: Path) -> None:
    with pytest.raises(distlaunch.WorkerError, match="stubborn") as caught:
        distlaunch.call(is_stubborn)

    assert caught.value.__cause__ is None
    assert "StubbornError: stubborn" in caught.value.traceback


def test_an_exception_of_a_class_that_is_only_there_is_reported_as_text(here: Path) -> None:
    def has_its_own() -> None:
        import sys
        import types

        module = sys.modules["only_there"] = types.ModuleType("only_there")
        exec("class OnlyThereError(Exception): pass", module.__dict__)  # as if it were installed
        raise module.OnlyThereError("not here")

    with pytest.raises(distlaunch.WorkerError, match=r"rank 0 on .*: .*OnlyThereError: not here") as caught:
        distlaunch.call(has_its_own)

    assert (caught.value.rank, caught.value.__cause__) == (0, None)
    assert "has_its_own" in caught.value.traceback


def test_a_worker_that_is_killed_is_an_error_without_an_exception(here: Path) -> None:
    def dies() -> None:
        import os

        os.kill(os.getpid(), 9)

    with pytest.raises(distlaunch.WorkerError) as caught:
        distlaunch.call(dies)
    assert (caught.value.rank, caught.value.__cause__) == (0, None)


def test_a_worker_that_fails_after_its_function_has_returned_is_an_error_without_an_exception(here: Path) -> None:
    def returns_and_fails() -> list[int]:
        import atexit
        import os

        if os.environ["RANK"] == "1":
            atexit.register(os._exit, 3)
        return [1]

    with pytest.raises(distlaunch.WorkerError, match="rank 1 on") as caught:
        distlaunch.call(returns_and_fails, nproc_per_node=2)
    assert (caught.value.rank, caught.value.__cause__) == (1, None)
    assert caught.value.result.cause
    assert caught.value.result.cause.exit_code == 3


def test_an_exception_is_told_though_another_rank_has_left_a_large_result_on_its_host(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(*_args: Any) -> bytes:
        raise distlaunch.CommandError("on another host")

    def returns_much_or_fails() -> bytes:
        import os
        import pathlib
        import time

        if os.environ["RANK"] == "0":
            return b"x" * (65 * 1024 * 1024)
        while not [*pathlib.Path(os.environ["DISTLAUNCH_OUTPUT_DIR"]).parent.glob("**/result-0")]:
            time.sleep(0.01)
        raise LookupError("not here")

    monkeypatch.setattr(_call, "_large", elsewhere)
    with pytest.raises(distlaunch.WorkerError, match=r"rank 1 on .*: LookupError: not here") as caught:
        distlaunch.call(returns_much_or_fails, nproc_per_node=2)
    assert isinstance(caught.value.__cause__, LookupError)


def test_a_value_that_cannot_be_sent_fails_the_call(here: Path) -> None:
    def returns_a_lock() -> Any:
        import threading

        return threading.Lock()

    with pytest.raises(distlaunch.WorkerError, match="cannot pickle"):
        distlaunch.call(returns_a_lock)
    with pytest.raises(distlaunch.SpecError, match="cannot be sent"):
        distlaunch.call(add, (returns_a_lock(),))


def test_a_call_that_takes_too_long_is_cancelled(here: Path) -> None:
    def sleeps() -> None:
        import time

        time.sleep(600)

    with pytest.raises(TimeoutError):
        distlaunch.call(sleeps, timeout=0.1)
    assert distlaunch.get("last").wait(60).state == "cancelled"


def test_pickles_are_private_to_their_owner(here: Path) -> None:
    distlaunch.call(add, (1,))
    run = distlaunch.get("last").path
    pickles = ("function", "nodes/0/call/request", "nodes/0/stream")
    assert [stat.S_IMODE((run / name).stat().st_mode) for name in pickles] == [0o600] * 3
    assert stat.S_IMODE((run / "nodes/0/call").stat().st_mode) == 0o700
    assert "function" not in json.loads((run / "spec.json").read_text())


def test_a_result_that_is_too_large_to_be_sent_is_read_from_a_local_disk(here: Path) -> None:
    def large() -> bytes:
        return b"x" * (65 * 1024 * 1024)

    (found,) = distlaunch.call(large)

    assert len(found) == 65 * 1024 * 1024


def test_a_large_result_on_another_hosts_disk_is_an_error_that_names_its_file(here: Path) -> None:
    run = distlaunch.submit("work.py")
    run.wait(120)

    with pytest.raises(
        distlaunch.CommandError, match=r"rank 3 returned is too large to be sent: it is in /r/nodes/1/call/result-3"
    ):
        _call._large(run, 3, "/r/nodes/1/call/result-3")


def test_a_missing_function_file_is_named(here: Path) -> None:
    distlaunch.call(add, (1,))
    run = distlaunch.get("last").path
    (run / "function").unlink()

    done = subprocess.run(
        [sys.executable, "agent.pyz", "--spec", "spec.json", "--node-rank", "0"],
        cwd=run,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 2
    assert "function is missing: it holds the function to call" in done.stderr


def test_a_function_of_ones_own_module_is_found_by_the_workers(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "own").mkdir()
    (here / "own/__init__.py").write_text("def one():\n    from own import parts\n    return parts.ONE\n")
    (here / "own/sums.py").write_text("from own import parts\ndef total():\n    return parts.ONE + 1\n")
    (here / "own/parts.py").write_text("ONE = 1\n")
    monkeypatch.syspath_prepend(str(here))
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    from own import one  # type: ignore[import-not-found]
    from own.sums import total  # type: ignore[import-not-found]

    assert distlaunch.call(total) == [2]
    assert distlaunch.call(one) == [1]
