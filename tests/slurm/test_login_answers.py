"""What ssh prints, and how it ends, for a program that runs on a login node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from launcher.errors import BackendUnavailableError
from launcher.login import remote

BEGINS, ANSWERS = (rf"printf '\001distlaunch\n{more}'" for more in ("", r"yes\n\001distlaunch-end 0\n"))


def over(ssh: str) -> Any:
    """A login node that is reached by this program, which closes its stdout and stays."""
    stays = f"{ssh}; exec sleep 600 >&- 2>&-"
    return SimpleNamespace(name="juno", words=lambda: ["sh", "-c", stays], leave=lambda: None)


def test_a_whole_answer_counts_though_ssh_does_not_exit() -> None:
    assert remote.run(over(ANSWERS), "", timeout_s=1).text == "yes"


@pytest.mark.parametrize(
    ("ssh", "first_s", "said"),
    [(":", 0.1, "juno does not answer"), (BEGINS, 15, "juno answers, and does not end what was asked")],
)
def test_an_ssh_that_closes_its_stdout_and_does_not_exit_is_an_error_of_the_login_node(
    ssh: str, first_s: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_FIRST_S", first_s)

    with pytest.raises(BackendUnavailableError, match=said):
        remote.run(over(ssh), "", timeout_s=0.1)
