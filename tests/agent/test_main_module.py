"""`__main__` is the user's module, even in a worker forked with torch, and processes that it starts find it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytestmark = pytest.mark.torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.harness import Runner

MULTIPROCESSING = """
import multiprocessing, sys
from dataclasses import dataclass

@dataclass
class Sample:
    value: int

def square(number):
    return Sample(number * number)

def send(queue):
    queue.put(Sample(7))

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            assert pool.map(square, [1, 2, 3]) == [Sample(1), Sample(4), Sample(9)]
        queue = context.Queue()
        child = context.Process(target=send, args=(queue,))
        child.start()
        assert queue.get(timeout=60) == Sample(7)
        child.join()
        print(method, child.exitcode, flush=True)
"""

LOADER = """
import os, sys, warnings
import torch
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index):
        return {"square": index * index, "pid": os.getpid(), "tensor": torch.full((3,), index)}

def seeded(worker): torch.manual_seed(worker)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for method, workers in (("fork", 2), ("spawn", 1), ("forkserver", 1)):
        loader = DataLoader(
            Squares(), batch_size=2, num_workers=workers, multiprocessing_context=method, worker_init_fn=seeded
        )
        rows = list(loader)
        assert sorted(int(v) for row in rows for v in row["square"]) == [i * i for i in range(8)]
        assert os.getpid() not in {int(pid) for row in rows for pid in row["pid"]}
        print(method, flush=True)
"""


def test_multiprocessing_of_every_start_method_pickles_the_scripts_classes_both_ways(warm_agents: Runner) -> None:
    run = warm_agents(MULTIPROCESSING)

    assert run.result() == "success", run.stderr
    assert run.stdout[0] == b"fork 0\nspawn 0\nforkserver 0\n"


def test_data_loader_workers_of_every_start_method_work(warm_agents: Runner) -> None:
    run = warm_agents(LOADER)

    assert run.result() == "success", run.stderr
    assert run.stdout[0] == b"fork\nspawn\nforkserver\n"


def test_a_package_runs_as_a_module_with_its_relative_imports(warm_agents: Runner, tmp_path: Path) -> None:
    package = tmp_path / "project" / "net"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "names.py").write_text("NAME = 'net'\n")
    (package / "__main__.py").write_text("from .names import NAME\nprint(NAME, __name__, __package__, __spec__.name)\n")
    (package / "agent.py").write_text("import net.protocol\nprint('own modules win', net.protocol.X)\n")
    (package / "protocol.py").write_text("X = 1\n")

    whole = warm_agents("net", kind="module", cwd=tmp_path / "project")
    part = warm_agents("net.agent", kind="module", cwd=tmp_path / "project")

    assert whole.stdout[0] == b"net __main__ net net.__main__\n", whole.stderr
    assert part.stdout[0] == b"own modules win 1\n", part.stderr


def test_a_module_that_does_not_exist_is_one_clear_failure(warm_agents: Runner) -> None:
    run = warm_agents("no_such_module", kind="module")

    assert run.result() == "failed"
    assert b"No module named no_such_module" in run.stderr[0]


@pytest.mark.parametrize("name", ["protocol.py", "worker.py", "elastic.py", "channel.py"])
def test_a_module_beside_the_script_may_be_named_like_one_of_the_agents(warm_agents: Runner, name: str) -> None:
    (warm_agents.directory / name).write_text("ORIGIN = 'mine'\n")
    module = name.removesuffix(".py")

    run = warm_agents(f"import {module}\nprint({module}.ORIGIN)\n")

    assert run.stdout[0] == b"mine\n", run.stderr
