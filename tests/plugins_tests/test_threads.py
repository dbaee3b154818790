"""A test that leaves a thread that computes is named, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.plugins_tests.conftest import Inner

LITTLE = "from tests.plugins import threads\n\nthreads.MOST_CPU_S = 0.2\n"
TESTS = """
import threading
import time

over = threading.Event()


def work():
    while not over.is_set():
        pass


def test_leaves_one_that_waits():
    threading.Thread(target=over.wait, daemon=True).start()


def test_leaves_one_that_computes():
    threading.Thread(target=work, name="busy", daemon=True).start()


def test_is_slowed():
    began = time.process_time()
    while time.process_time() < began + 2:
        pass


def test_is_slowed_as_well():
    test_is_slowed()
    over.set()
"""


def test_a_thread_that_computes_after_its_test_is_a_failure(inner: Callable[..., Inner]) -> None:
    done = inner({"conftest.py": LITTLE, "test_some.py": TESTS})

    assert done.code == 1
    assert done.text.count("test_leaves_one_that_computes has left the thread 'busy', which has computed for ") >= 1
    assert "4 passed, 1 error" in done.lines[-1]


def test_one_that_needs_little_is_none(inner: Callable[..., Inner]) -> None:
    done = inner({"test_some.py": TESTS})

    assert "4 passed" in done.lines[-1]
    assert "error" not in done.lines[-1]
