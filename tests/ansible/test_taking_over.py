"""Who is given the connections by which a run was started: the launcher that follows it, and no one else."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.system import install

STRANGER = 54321
LISTENS = """
import os, socket, sys
listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
os.setuid(int(sys.argv[2]))
listening.bind("\\0" + sys.argv[1])
listening.listen()
print("listens", flush=True)
listening.accept()[0].recv(100)
"""


@pytest.mark.parametrize(("uid", "given"), [(os.getuid(), ["n1"]), (STRANGER, [])])
def test_a_stranger_who_has_taken_the_name_of_a_dead_launcher_gets_no_connection(
    uid: int, given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid():
        pytest.skip("only root can be another user")
    monkeypatch.syspath_prepend(str(install.data("playbooks") / "roles/distlaunch/plugin_utils"))
    from distlaunch_asking import Asking

    sent: list[str] = []
    name = f"distlaunch-test-{secrets.token_hex(8)}"
    asking: Any = Asking(["n1"], {}, "", 1.0)
    asking._sessions["n1"] = SimpleNamespace(hand_over=lambda *_: sent.append("n1"))
    argv = [sys.executable, "-c", LISTENS, name, str(uid)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "listens\n"
        asking.hand_over(name, {"n1": 0}, {"n1": {"directory": "/run"}})
        other.wait(timeout=60)

    assert sent == given
