"""Private names of CPython, torch and submitit: each is used in one file, which checks that it is there."""

from __future__ import annotations

import ast
import atexit
import inspect
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.forkserver import cpython

if TYPE_CHECKING:
    from tests.agent.harness import Runner

ROOT = Path(__file__).parents[2]
LACKS_CLEAR = "import atexit\ndel atexit._clear\n"

ELASTIC = """
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
"""

PRIVATE = {
    "launcher/agent/forkserver/cpython.py": (
        "_clear _ncallbacks _run_module_as_main _current_frames _zip_directory_cache _registry"
    ),
    "launcher/agent/forkserver/workers_store.py": "master_listen_fd",
    "launcher/agent/group/torchelastic.py": (
        "_start_workers _stop_workers _shutdown _monitor_workers _rendezvous _assign_worker_ranks _exit_barrier "
        "_remaining_restarts _worker_group _bootstrap_store_info _shared_tcp_store_server _state_holder _this_node "
        "_get_store"
    ),
    "launcher/backends/slurm/submitit.py": (
        "_get_job_id_from_submission_command _make_command _num_calls _info_dict _last_status_check "
        "_make_submission_file_text _make_submission_command _submit_command"
    ),
    "train/trainer/torch_private.py": (
        "_foreach_copy_ _foreach_lerp_ _upsample_bilinear2d_aa _is_avx512_bf16_supported _python_dispatch _pytree"
    ),
}
"""Names of torch, submitit and CPython that are not public, by the one file that may use them."""

FOREIGN = {"torch", "submitit", "atexit", "runpy", "zipimport", "sys", "threading"}


def made(name: str, then: str) -> str:
    """Code that makes torch initialise objects of that class differently."""
    body = f"    before(self, *args, **kwargs)\n    {then}"
    return f"before = {name}.__init__\ndef other(self, *args, **kwargs):\n{body}\n{name}.__init__ = other\n"


def test_this_python_has_all_that_forked_workers_need() -> None:
    assert cpython.missing() == []


@pytest.mark.parametrize(
    ("module", "name"), [(atexit, "_clear"), (atexit, "_ncallbacks"), (runpy, "_run_module_as_main")]
)
def test_a_name_that_a_python_lacks_is_named(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    monkeypatch.delattr(module, name)

    assert cpython.missing() == [f"{module.__name__}.{name}"]


def test_a_name_with_other_arguments_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runpy, "_run_module_as_main", lambda name, *, quietly: (name, quietly))

    assert cpython.missing() == ["runpy._run_module_as_main(mod_name, alter_argv)"]


def test_where_python_lacks_one_workers_are_spawned(agents: Runner) -> None:
    (agents.directory / "sitecustomize.py").write_text(LACKS_CLEAR)

    run = agents("print('hello')\n", env=(f"PYTHONPATH={agents.directory}",))

    assert run.result() == "success"
    assert run.stdout[0] == b"hello\n"
    warnings = [fields["message"] for fields in run.of("warning")]
    assert [said for said in warnings if "lacks atexit._clear, which forked workers need" in said], warnings


@pytest.mark.torch
def test_this_torch_has_all_that_elastic_runs_need() -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from launcher.agent.forkserver import workers_store
    from launcher.agent.group import torchelastic

    torchelastic.check()
    workers_store.check(TCPStore)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        pytest.param("del SimpleElasticAgent._exit_barrier", "SimpleElasticAgent._exit_barrier()", id="a method"),
        pytest.param(
            "SimpleElasticAgent._stop_workers = lambda self, group: None",
            "SimpleElasticAgent._stop_workers(worker_group)",
            id="a method's argument",
        ),
        pytest.param(
            "SimpleElasticAgent._monitor_workers = lambda self, worker_group, closely: None",
            "SimpleElasticAgent._monitor_workers(worker_group)",
            id="a method wants more",
        ),
        pytest.param(
            made("SimpleElasticAgent", "self._left = self._remaining_restarts\n    del self._remaining_restarts"),
            "SimpleElasticAgent._remaining_restarts",
            id="a number that is sent to peers",
        ),
        pytest.param(
            made(
                "DynamicRendezvousHandler",
                "self._store_info = self._bootstrap_store_info\n    del self._bootstrap_store_info",
            ),
            "DynamicRendezvousHandler._bootstrap_store_info",
            id="an attribute that is written",
        ),
        pytest.param(
            made("DynamicRendezvousHandler", "self._shared_tcp_store_server = ()"),
            "DynamicRendezvousHandler._shared_tcp_store_server",
            id="of another kind",
        ),
        pytest.param(
            "del dynamic_rendezvous.RendezvousTimeout",
            "a name (cannot import name 'RendezvousTimeout' from "
            "'torch.distributed.elastic.rendezvous.dynamic_rendezvous'",
            id="a class",
        ),
    ],
)
def test_an_elastic_run_reports_what_its_torch_lacks_and_starts_no_worker(
    agents: Runner, change: str, lacks: str
) -> None:
    from torch.distributed.elastic.rendezvous import api

    if "_store" in change and "server_port" not in inspect.signature(api.RendezvousStoreInfo.build).parameters:
        pytest.skip("this torch keeps no address for the workers' store")
    (agents.directory / "preloaded.py").write_text(ELASTIC + change)
    script = "# distlaunch: preload preloaded\nimport torch\nprint('started')\n"

    run = agents(script, nodes="1:2", env=(f"PYTHONPATH={agents.directory}",))

    assert run.result() == "failed"
    assert not run.stdout
    message = run.cause()["message"]
    assert f": it lacks {lacks}" in message
    assert message.startswith("elastic runs do not support torch 2.")
    assert message.endswith("(--nodes 2, not 1:2) needs nothing of it; plain torchelastic is what torchrun starts")


@pytest.mark.torch
def test_a_store_that_cannot_serve_at_our_socket_is_named() -> None:
    import torch

    from launcher.agent.forkserver import workers_store

    with pytest.raises(
        NotImplementedError, match=f"torch {re.escape(torch.__version__)}: its TCPStore lacks master_listen_fd"
    ):
        workers_store.check(SimpleNamespace(__init__=SimpleNamespace(__doc__="__init__(host_name: str, port: int)")))


def private_names(text: str) -> set[str]:
    """The names of `PRIVATE` that Python text uses, and all else of foreign modules that begins with a single `_`."""
    listed = {name for names in PRIVATE.values() for name in names.split()} | {"_getframe"}
    tree, found, foreign = ast.parse(text), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            words = [word for alias in node.names for word in alias.name.split(".")]
            foreign |= {alias.asname or words[0] for alias in node.names if alias.name.split(".")[0] in FOREIGN}
            found |= {word for word in words if word in listed}
        elif isinstance(node, ast.ImportFrom):
            words = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            ours = node.level == 0 and words[0] in FOREIGN
            foreign |= {alias.asname or alias.name for alias in node.names if ours}
            found |= {word for word in words if ours and is_private(word)}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.keyword)):
            name = node.arg if isinstance(node, ast.keyword) else node.name
            found |= {name} & listed if name else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (node.attr in listed or is_private(node.attr)):
            root: ast.expr = node
            while isinstance(root, ast.Attribute):
                root = root.value
            if node.attr in listed or (isinstance(root, ast.Name) and root.id in foreign):
                found.add(node.attr)
        elif isinstance(node, ast.Constant) and node.value in listed:
            found.add(node.value)
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize("directory", ["launcher", "train"])
def test_no_other_file_uses_a_private_name(directory: str) -> None:
    paths = sorted((ROOT / directory).rglob("*.py"))
    assert len(paths) > 20
    used = {str(path.relative_to(ROOT)): private_names(path.read_text()) for path in paths}

    assert {path: names for path, names in used.items() if names and path not in PRIVATE} == {}
    for path, names in PRIVATE.items():
        if path.startswith(directory):
            assert used[path] <= set(names.split()), path
            assert used[path], f"{path} no longer has any"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import torch as t\nt.cpu._is_it()", {"_is_it"}),
        ("from torch.utils import _pytree", {"_pytree"}),
        ("from submitit.slurm.slurm import SlurmExecutor\nSlurmExecutor._call('x')", {"_call"}),
        ("handler._this_node = 1", {"_this_node"}),
        ("class A(B):\n    def _exit_barrier(self): pass", {"_exit_barrier"}),
        ("getattr(torch, '_foreach_copy_')", {"_foreach_copy_"}),
        ("import os\nos._exit(self._own, torch.__version__)", set()),
    ],
)
def test_what_counts_as_private(text: str, names: set[str]) -> None:
    assert private_names(text) == names


def test_a_submitit_that_lacks_a_name_is_named_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    from submitit.slurm.slurm import SlurmInfoWatcher

    from launcher.backends.slurm import submitit
    from launcher.backends.slurm.site import Site
    from launcher.errors import BackendUnavailableError

    made_before = SlurmInfoWatcher.__init__

    def renamed(self: Any, delay_s: int) -> None:
        made_before(self, delay_s)
        self._info = vars(self).pop("_info_dict")

    submitit.Queue(Site())
    monkeypatch.setattr(SlurmInfoWatcher, "__init__", renamed)

    with pytest.raises(
        BackendUnavailableError, match=r"does not support submitit [\d.]+: SlurmInfoWatcher lacks _info_dict"
    ):
        submitit.Queue(Site())


def test_nothing_is_submitted_by_a_submitit_that_cannot_read_the_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from submitit.slurm.slurm import SlurmExecutor

    from launcher.backends.slurm import submitit
    from launcher.errors import BackendUnavailableError

    (tmp_path / "sbatch").write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delattr(SlurmExecutor, "_get_job_id_from_submission_command")

    with pytest.raises(BackendUnavailableError, match="SlurmExecutor lacks _get_job_id_from_submission_command"):
        submitit.send(str(tmp_path / "job"))
    assert not (tmp_path / "asked").exists()
