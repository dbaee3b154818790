"""torch._dynamo, which DistributedDataParallel imports: once per node, if the script names that class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.command import Cli

SCRIPT = """
import sys
print("before torch", "torch._dynamo" in sys.modules)
import torch
print("before use", "torch._dynamo" in sys.modules)
from torch.nn.parallel import {name}
print("end", "torch._dynamo" in sys.modules)
"""


@pytest.mark.torch
def test_it_is_there_for_several_workers_of_a_script_that_names_it_and_never_before_torch(distlaunch: Cli) -> None:
    distlaunch.write("ddp.py", SCRIPT.format(name="DistributedDataParallel"))
    distlaunch.write("other.py", SCRIPT.format(name="DataParallel"))
    distlaunch.write("sets.py", SCRIPT.format(name="DistributedDataParallel") + "# os.environ['TORCHDYNAMO_DISABLE']\n")
    runs = {
        "several": ("--nproc-per-node", "2", "ddp.py"),
        "one": ("ddp.py",),
        "other": ("--nproc-per-node", "2", "other.py"),
        "sets": ("--nproc-per-node", "2", "sets.py"),
    }

    seen = {name: distlaunch("local", "-q", *words).stdout.splitlines() for name, words in runs.items()}

    assert seen.pop("several") == ["before torch False", "before use True", "end True"]
    assert list(seen.values()) == [["before torch False", "before use False", "end False"]] * 3
