"""A plugin of pytest: the two fork servers that all tests of a process share, one for `distlaunch`, one with torch."""

from __future__ import annotations

import os
import threading
from functools import cache

import pytest

from tests.forked import ROOT, Server

_COMMANDS = (
    "launcher.cli.app", "launcher.cli.launch",
    "launcher.service.observe", "launcher.service.follow", "launcher.runs.status",
    "launcher.backends.local.backend", "launcher.backends.slurm.backend", "launcher.backends.slurm.submitit", "jinja2",
    "launcher.backends.ansible.backend", "ansible_runner.interface", "yaml",
    "launcher.backends.kubernetes.backend",
    "kubernetes.", "kubernetes.config", "kubernetes.client.configuration", "kubernetes.client.rest",
    "launcher.payload.agent_archive:packed", "launcher.payload.agent_archive:parts",
)  # fmt: skip
"""The command line, what its backends import only when they need it, and the agent, which every launch packs."""

AT_START = dict(os.environ)
"""This process's variables before it imports modules that set some, as torch and scikit-learn do."""

_TORCH = (
    "torch.distributed.nn", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict_saver", "torch._dynamo",
    "torchvision.models", "torchvision.io", "matplotlib.figure", "yaml",
)  # fmt: skip

_lock = threading.Lock()


@cache
def _commands() -> Server:
    return Server(_COMMANDS, path=[str(ROOT)])


@cache
def _torch() -> Server:
    return Server(_TORCH, env=AT_START)


def commands() -> Server:
    """The server for `distlaunch`; it starts when it is first used, and ends with this process."""
    with _lock:
        return _commands()


@pytest.fixture(scope="session")
def cli_server() -> Server:
    """Forks processes that have imported what `distlaunch` may need."""
    return commands()


@pytest.fixture(scope="session")
def torch_server() -> Server:
    """Forks processes that have imported torch, and what else the trainer uses."""
    with _lock:
        return _torch()
