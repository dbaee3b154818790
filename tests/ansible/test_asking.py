"""All hosts of a task at once, without hosts."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from launcher.system import install

if TYPE_CHECKING:
    import pytest

LIMIT_S = 60


def test_a_host_is_contacted_while_the_next_one_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install.data("playbooks") / "roles/distlaunch/plugin_utils"))
    from distlaunch_asking import Asking

    contacted, prepared = {"n1": threading.Event(), "n2": threading.Event()}, []

    def prepare(host: str) -> None:
        prepared.append(host)
        if host == "n2":
            assert contacted["n1"].wait(LIMIT_S), "the first one still waits"

    def work(host: str) -> dict[str, Any]:
        assert host in prepared
        contacted[host].set()
        return {"problem": f"{host} was contacted"}

    with Asking(["n1", "n2"], {"answers": {}}, "", 1.0) as asking:
        found = asking.each("preflight", ["n1", "n2"], work, prepare=prepare)

    assert {host: answer["problem"] for host, answer in found.items()} == {
        "n1": "n1 was contacted",
        "n2": "n2 was contacted",
    }
