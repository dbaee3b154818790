"""Memory that a benchmark keeps from the hypervisor changes nothing else that is measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fork_servers import AT_START

pytestmark = pytest.mark.torch(False)

ROOT = Path(__file__).resolve().parents[2]
KEEPS = """
import json
from benchmarks import _free_memory
_free_memory._is_reported = lambda: True
{before}
_free_memory.keep(2, size={size})
{after}
"""


def told(size: int, after: str, before: str = "") -> Any:
    """What a process of its own prints that keeps so much memory: the tests' own has a high peak."""
    code = KEEPS.format(size=size, before=before, after=after)
    env = AT_START | {"PYTHONPATH": str(ROOT)}

    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)

    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_a_measured_commands_memory_is_its_own() -> None:
    size = 256 << 20
    measured = """
from benchmarks._measure import Contender, measure
print(json.dumps(measure(Contender("true", ["true"])).rss_bytes))
"""
    assert 0 < told(size, measured) < size / 2


def test_no_more_is_kept_than_a_container_may_use(small_cgroup: Path) -> None:
    """The machine has more."""
    joins = f"open('{small_cgroup}/cgroup.procs', 'w').write('0')"

    (kept,) = told(4 << 30, "print(json.dumps([len(each) for each in _free_memory._KEPT]))", before=joins)

    assert 256 << 20 < kept <= 512 << 20


def test_a_forked_process_has_nothing_of_it() -> None:
    """A fork that copies its page tables takes longer. What it maps in the same place stays."""
    size = 256 << 20
    forked = """
import mmap, os, sys
told, tell = os.pipe()
if os.fork() == 0:
    with open("/proc/self/status") as file:
        sizes = [line.split()[1] for line in file if line.startswith("VmSize:")]
    os.write(tell, sizes[0].encode())
    own = mmap.mmap(-1, len(_free_memory._KEPT[0]))
    _free_memory._KEPT.clear()  # as the end of the interpreter does
    own[0] = own[-1] = 1
    raise SystemExit
_, status = os.wait()
with open("/proc/self/status") as file:
    sizes = [line.split()[1] for line in file if line.startswith("VmSize:")]
print(json.dumps([status, int(sizes[0]) - int(os.read(told, 100))]))
"""
    status, less_kb = told(size, forked)

    assert status == 0
    assert less_kb >= size >> 10


def test_the_documentation_names_the_benchmarks_that_keep_it() -> None:
    text = (ROOT / "docs/benchmarks.md").read_text().partition("**Free memory stays here.**")[2].partition("\n- **")[0]
    keeps = re.compile(r"\b(_free_memory\.keep|side_by_side)\(")
    found = [path.name for path in (ROOT / "benchmarks").glob("[!_]*.py") if keeps.search(path.read_text())]

    assert re.findall(r"`(\w+\.py)`", text) == sorted(found)
