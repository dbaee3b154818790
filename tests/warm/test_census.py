"""A script cannot tell a worker that was started warm from one that torchrun started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agent.harness import SCRIPTS
from tests.agent.test_census import (
    ARGS,
    OURS,
    PER_RUN,
    STACKS,
    check_stacks,
    default_signals,
    differences,
    read,
    under_torchrun,
)
from tests.warm.conftest import TORCH, start_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.forked import Server
    from tests.warm.conftest import Warm

pytestmark = pytest.mark.torch
__all__ = ["default_signals"]


@pytest.mark.parametrize(("target", "kind"), [(["census.py"], "script"), (["-m", "census"], "module")])
def test_a_worker_sees_what_it_sees_under_torchrun(
    warm: Warm, torch_server: Server, tmp_path: Path, target: list[str], kind: str
) -> None:
    theirs = under_torchrun(torch_server, tmp_path / "theirs", target, 2, {})
    assert warm(TORCH, nproc_per_node="2").result() == "success"

    out = f"CENSUS_OUT={tmp_path / 'ours'}"
    run = warm(target[-1], *ARGS, kind=kind, nproc_per_node="2", env=(out,), cwd=SCRIPTS)

    assert run.result() == "success", run.stderr
    assert start_of(run) == (True, None)
    ours = read(tmp_path / "ours", 2)
    expected = {f"/env/{name}" for name in (OURS | PER_RUN)} | {"/seeds", "/authkey"} | STACKS
    for rank in range(2):
        found = differences(theirs[rank], ours[rank])
        assert {key: value for key, value in found.items() if key not in expected} == {}
        check_stacks(theirs[rank], ours[rank], has_them=True)


def test_every_run_draws_its_own_seeds(warm: Warm, tmp_path: Path) -> None:
    assert warm(TORCH, nproc_per_node="2").result() == "success"
    seen = []
    for name in ("one", "two"):
        run = warm(SCRIPTS / "census.py", nproc_per_node="2", env=(f"CENSUS_OUT={tmp_path / name}",))
        assert start_of(run) == (True, None)
        seen += read(tmp_path / name, 2)

    for kind in range(4):
        assert len({census["seeds"][kind] for census in seen}) == len(seen)
    assert len({census["authkey"] for census in seen}) == len(seen)
