"""torch is imported for scripts that will import it, and for no others."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from launcher.agent.program import Program

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.spec import Kind
    from tests.agent.harness import Runner

FILES = {
    "empty.py": "",
    "std.py": "import os, json.decoder, xml.etree.ElementTree as e\nfrom concurrent import futures\n",
    "direct.py": "import torch\n",
    "late.py": "def f():\n    from torch import nn\n",
    "by_name.py": "import importlib\nimportlib.import_module('torch.nn')\n",
    "numbers.py": "import numpy as np\nfrom mpi4py import MPI\n",
    "third.py": "import pytest\n",
    "absent.py": "import no_such_module_anywhere\n",
    "own.py": "import lib.plain\n",
    "own_torch.py": "from lib import model\n",
    "own_relative.py": "from lib.chain import x\n",
    "circle.py": "import circle\nimport std\n",
    "broken.py": "def f(:\n",
    "lib/__init__.py": "",
    "lib/plain.py": "from . import other\n",
    "lib/other.py": "from .plain import name\n",
    "lib/model.py": "import torch.nn\n",
    "lib/chain.py": "from .deep.end import x\n",
    "lib/deep/__init__.py": "",
    "lib/deep/end.py": "import torch\n",
    "tool/__init__.py": "",
    "tool/__main__.py": "import torch\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scripts of all kinds."""
    top = tmp_path_factory.mktemp("scripts")
    for name, text in FILES.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    return top


@pytest.mark.parametrize(
    ("target", "kind", "wants"),
    [
        ("empty.py", "script", False),
        ("std.py", "script", False),
        ("direct.py", "script", True),
        ("late.py", "script", True),
        ("by_name.py", "script", True),
        ("numbers.py", "script", False),
        ("third.py", "script", True),
        ("absent.py", "script", False),
        ("own.py", "script", False),
        ("own_torch.py", "script", True),
        ("own_relative.py", "script", True),
        ("circle.py", "script", False),
        ("broken.py", "script", False),
        ("std", "module", False),
        ("lib.model", "module", True),
        ("lib.plain", "module", False),
        ("tool", "module", True),
        ("json.tool", "module", False),
        ("pytest", "module", True),
        ("direct.py", "program", False),
    ],
)
def test_a_script_wants_torch_when_it_or_its_own_modules_may_import_it(
    folder: Path, target: str, kind: Kind, wants: bool
) -> None:
    loaded = set(sys.modules)

    assert Program([target], kind, str(folder)).wants_torch() is wants
    assert not {name for name in set(sys.modules) - loaded if name.split(".")[0] in ("torch", "lib", "tool")}


def test_a_run_that_needs_no_torch_imports_none_in_any_of_its_processes(agents: Runner, folder: Path) -> None:
    text = (
        "import os, pathlib, sys\n"
        "print(any(name.partition('.')[0] in ('to' 'rch', 'numpy') for name in sys.modules))\n"
        "above = [pathlib.Path(f'/proc/{pid}/maps').read_text() for pid in (os.getpid(), os.getppid())]\n"
        "print(any('to' 'rch' in maps for maps in above))\n"
    )
    script = agents(text, nodes="2", nproc_per_node="2")
    shell = agents("sh", "-c", "grep -c libto'rch' /proc/$PPID/maps; echo $RANK", kind="program", nproc_per_node="2")

    assert script.result() == shell.result() == "success"
    assert list(script.stdout.values()) == [b"False\nFalse\n"] * 4
    assert dict(shell.stdout) == {0: b"0\n0\n", 1: b"0\n1\n"}
    assert [fields["torch_version"] for fields in (*script.of("host_facts"), *shell.of("host_facts"))] == [None] * 3


@pytest.mark.torch
def test_a_script_that_finds_torch_in_another_way_gets_it_all_the_same(agents: Runner) -> None:
    run = agents("name = 'to' 'rch'\ntorch = __import__(name)\nprint(int(torch.ones(2).sum()))\n", nproc_per_node="2")

    assert run.result() == "success"
    assert list(run.stdout.values()) == [b"2\n"] * 2
