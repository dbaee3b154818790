"""Values of torchrun's options mean what the installed torchrun takes them for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.system import nvml
from launcher.torchrun import logs, meeting, rendezvous, workers
from launcher.torchrun.options import TorchrunUsageError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch


def outcome(function: Callable[[], Any], *errors: type[Exception]) -> Any:
    """What it returns, or None where it refuses."""
    try:
        return function()
    except errors:
        return None


ENDPOINTS = [
    "", " ", "h", "h:1", "h:0", "h:65535", "h:65536", "h:", "h:x", "h:-1", "10.0.0.1", "10.0.0.1:29500", "[::1]",
    "[::1]:29500", "::1", "h h:1", "h/1:2", "a.b-c.d:123456", " h:1 ",
]  # fmt: skip


@pytest.mark.parametrize("text", ENDPOINTS)
def test_an_endpoint_is_read_as_by_torchrun(text: str) -> None:
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    ours = outcome(lambda: rendezvous.endpoint(text, 29400), TorchrunUsageError)
    assert ours == outcome(lambda: parse_rendezvous_endpoint(text, 29400), ValueError)


@pytest.mark.parametrize("text", ["", " ", "a=1", "a=1,b=2", " a = 1 , b=x=y", "a", "a=", "=1", ",", "a=1,"])
def test_the_settings_of_a_rendezvous_are_read_as_by_torchrun(text: str) -> None:
    from torch.distributed.elastic.rendezvous.utils import _parse_rendezvous_config

    ours = outcome(lambda: rendezvous.settings(text), TorchrunUsageError)
    assert ours == outcome(lambda: _parse_rendezvous_config(text), ValueError)


@pytest.mark.parametrize(
    "text", ["0", "1", "2", "3", "4", "", "0:1", "0:1,1:3", "1:2,7:0", "0:4", "0:1,", "a", "10:1", "0:1 "]
)
def test_a_choice_of_streams_is_read_as_by_torchrun(text: str) -> None:
    from torch.distributed.elastic.multiprocessing.api import Std, to_map

    ours = outcome(lambda: [logs.streams("--tee", text)(rank) for rank in range(9)], TorchrunUsageError)
    assert ours == outcome(lambda: [int(std) for std in to_map(Std.from_str(text), 9).values()], ValueError)


@pytest.mark.parametrize("text", ["1", "7", "cpu", "auto", "gpu", "xpu", "many", "privateuseone"])
def test_the_number_of_workers_is_the_same_as_torchruns(text: str) -> None:
    import sys

    from torch.distributed.run import determine_local_world_size

    ours = outcome(lambda: workers.count(text, dict(os.environ), sys.executable), TorchrunUsageError)
    assert ours == outcome(lambda: determine_local_world_size(text), ValueError, RuntimeError)


def test_a_torch_that_knows_gpus_counts_those_that_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_knows_gpus", lambda: True)
    monkeypatch.setattr(nvml, "gpus", lambda: 4)

    assert workers.count("auto", {}, "python") == 4
    assert workers.count("gpu", {"CUDA_VISIBLE_DEVICES": "1,2"}, "python") == 2


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "127.0.0.9", "::1", "192.0.2.77", "no.such.host.invalid", "OWN"]
)
def test_whether_a_host_is_this_one_is_decided_as_by_torchrun(host: str) -> None:
    import socket

    from torch.distributed.elastic.rendezvous.utils import _matches_machine_hostname

    host = socket.gethostname() if host == "OWN" else host
    assert meeting.is_here(host) == _matches_machine_hostname(host)


@pytest.mark.parametrize(
    "text", ["plain", "${local_rank}", "$local_rank", "$$x", "${other}", "a$", "x${local_rank}y$local_rank", "${"]
)
def test_macros_are_replaced_as_by_torchrun(text: str) -> None:
    from torch.distributed.elastic.utils.api import macros

    from launcher.agent.forkserver.program import Program

    program = Program(["x.py", text], "script", "/")
    program.substitute(local_rank="3")

    assert program.args == macros.substitute([text], "3")
