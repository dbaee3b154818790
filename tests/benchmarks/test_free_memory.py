"""Memory that a benchmark keeps from the hypervisor changes nothing else that is measured."""

from __future__ import annotations

import json
import mmap
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
import json, os
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

    (kept,) = told(4 << 30, "print(json.dumps([os.fstat(each).st_size for each in _free_memory._KEPT]))", before=joins)

    assert 256 << 20 < kept <= 512 << 20


def test_what_is_kept_is_no_memory_of_the_process() -> None:
    """A command that it starts would begin with that as its own, and a fork would copy the page tables."""
    status = """
def status():
    with open("/proc/self/status") as file:
        fields = dict(line.split(":") for line in file)
    return [int(fields[name].split()[0]) for name in ("VmHWM", "VmSize", "VmPTE")]

before = status()
"""
    grown = "print(json.dumps([after - earlier for earlier, after in zip(before, status(), strict=True)]))"
    size = 256 << 20

    peak_kb, mapped_kb, tables_kb = told(size, grown, before=status)

    assert peak_kb < 8 << 10
    assert mapped_kb < size >> 11
    assert tables_kb < size >> 21 << 2, "a page of page tables for each block"


def test_of_each_block_a_page_is_kept() -> None:
    blocks = "print(json.dumps([os.fstat(each).st_blocks * 512 for each in _free_memory._KEPT]))"

    assert told(256 << 20, blocks) == [128 * mmap.PAGESIZE]


def test_the_documentation_names_the_benchmarks_that_keep_it() -> None:
    text = (ROOT / "docs/benchmarks.md").read_text().partition("**Free memory stays here.**")[2].partition("\n- **")[0]
    keeps = re.compile(r"\b(_free_memory\.keep|side_by_side)\(")
    found = [path.name for path in (ROOT / "benchmarks").glob("[!_]*.py") if keeps.search(path.read_text())]

    assert re.findall(r"`(\w+\.py)`", text) == sorted(found)
