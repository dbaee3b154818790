"""Private names of CPython, torch and submitit: each is used in one file, which checks that it is there."""

from __future__ import annotations

import ast
import atexit
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

PRIVATE = {
    "launcher/agent/forkserver/cpython.py": (
        "_clear _ncallbacks _run_module_as_main _current_frames _zip_directory_cache _registry"
    ),
    "launcher/agent/forkserver/workers_store.py": "master_listen_fd",
    "launcher/backends/slurm/submitit.py": (
        "_get_job_id_from_submission_command _make_command _num_calls _info_dict _last_status_check "
        "_make_submission_file_text _make_submission_command _submit_command"
    ),
    "train/trainer/torch_private.py": (
        "_foreach_copy_ _foreach_lerp_ _upsample_bilinear2d_aa _is_avx512_bf16_supported _is_amx_tile_supported "
        "_python_dispatch _pytree"
    ),
}
"""Names of torch, submitit and CPython that are not public, by the one file that may use them."""

FOREIGN = {"torch", "submitit", "atexit", "runpy", "zipimport", "sys", "threading"}


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
def test_the_store_of_this_torch_can_serve_at_our_socket() -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from launcher.agent.forkserver import workers_store

    workers_store.check(TCPStore)


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
        ("job._make_command = 1", {"_make_command"}),
        ("class A(B):\n    def _submit_command(self): pass", {"_submit_command"}),
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
