"""How long a node of `distlaunch torchrun` may be silent before it is lost, and how a user changes that."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from launcher.agent.failures import Failure
from launcher.agent.group import losses
from launcher.agent.protocol import encode_event
from launcher.torchrun import options, request
from launcher.torchrun.options import TorchrunUsageError
from launcher.torchrun.show import Show

if TYPE_CHECKING:
    from launcher.torchrun.request import Request

SILENT = losses.silence(1, 301.0, "", over=True)


def asked(*words: str) -> Request:
    args = options.parse(["--nnodes=2", "--master-port=29500", *words, "x.py"], {})
    return request.of(args, {}, python=sys.executable, say=print)


@pytest.mark.parametrize(
    ("conf", "host_s", "peer_s"),
    [
        ("", 30, 300),
        ("keep_alive_interval=1,keep_alive_max_attempt=10", 30, 300),
        ("keep_alive_interval=60,keep_alive_max_attempt=5", 300, 400),
        ("keep_alive_interval=60", 180, 300),
        ("keep_alive_max_attempt=12", 60, 300),
    ],
)
def test_as_long_as_torchruns_keep_alives_allow_if_that_is_longer(conf: str, host_s: float, peer_s: float) -> None:
    job = asked("--rdzv-conf", conf).job

    assert (job.host_timeout_s, job.peer_timeout_s, job.unreachable_s) == (host_s, peer_s, host_s)


def test_a_limit_that_is_no_number_is_named() -> None:
    with pytest.raises(TorchrunUsageError, match="keep_alive_max_attempt=often: write a number"):
        asked("--rdzv-conf=keep_alive_max_attempt=often")


def test_what_is_reported_of_a_silent_node_names_an_option_that_exists_here(capfd: pytest.CaptureFixture[str]) -> None:
    """The run continues without it, or is lost with it."""
    said: list[str] = []
    about = asked()
    show = Show(about.wanted, about.job, 0, "h", said.append)
    reader, writer = os.pipe()
    cause = {"class": Failure.NODE, "message": SILENT}
    os.write(writer, encode_event("warning", 0, message=SILENT) + encode_event("done", 0, result="failed", cause=cause))
    os.close(writer)

    show.follow(reader)

    assert not show.report()
    for text in (*said, capfd.readouterr().err):
        assert "no sign of node 1 for 301 s (--rdzv-conf keep_alive_interval)" in text
        assert "--peer-timeout" not in text
