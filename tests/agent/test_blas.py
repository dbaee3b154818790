"""A worker gives OpenBLAS the threads that it would have had in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.agent.harness import LIMIT_S
from tests.command import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
static int count = 1;
void openblas_set_num_threads(int wanted) { count = wanted; }
int openblas_get_num_threads(void) { return count; }
"""

USES = """
import ctypes, os, sys
from launcher.agent.forkserver import worker
library = ctypes.CDLL(sys.argv[1])
if sys.argv[2] == "upgraded":
    os.remove(sys.argv[1])
worker.set_blas_threads({"OPENBLAS_NUM_THREADS": "2"})
print(library.openblas_get_num_threads())
"""


@pytest.mark.parametrize(("state", "threads"), [("as it was", "2"), ("upgraded", "1")])
def test_a_library_whose_file_is_gone_keeps_its_thread_and_ends_no_worker(
    tmp_path: Path, state: str, threads: str
) -> None:
    library = tmp_path / "libopenblas.so"
    argv = ["gcc", "-shared", "-fPIC", "-o", str(library), "-x", "c", "-"]
    subprocess.run(argv, input=SOURCE, text=True, check=True, timeout=LIMIT_S)

    done = subprocess.run(
        [sys.executable, "-c", USES, str(library), state], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S
    )

    assert (done.stdout, done.stderr) == (f"{threads}\n", "")
