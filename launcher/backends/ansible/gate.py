"""The connection to a login node, kept open for those who follow hosts behind it; none of them waits for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launcher.backends._patience import Patience
from launcher.backends.ansible import ssh
from launcher.errors import LaunchError
from launcher.system.question import Question

if TYPE_CHECKING:
    from launcher.backends.ansible.handle import Node
    from launcher.login.connection import Login

_KNOWN_S = 2.0
"""How long it counts as open after it was."""


class Gate:
    """Opens the connection when it is needed."""

    def __init__(self, login: Login | None) -> None:
        """Without a login node, it is always open."""
        self.problem = ""
        """Why it is not open."""

        self._login = login
        self._patience = Patience()
        self._question: Question[list[str]] | None = None
        self._open_until = 0.0

    def is_open(self) -> bool:
        """Whether hosts can be connected to now; if not, it is being opened, or will be after a pause."""
        if self._login is None or time.monotonic() < self._open_until:
            return True
        if self._question is None:
            if not self._patience.may_try():
                return False
            self._question = Question(self._login.words, "login")
        if not self._question.answered(0.0):
            return False
        question, self._question = self._question, None
        try:
            question.answer()
        except LaunchError as error:
            self.problem = error.message
            self._patience.pause()
            return False
        ssh.forget_proxies()  # the connection may be another one now
        self._patience.renew()
        self.problem, self._open_until = "", time.monotonic() + _KNOWN_S
        return True


class Gates:
    """One per login node."""

    def __init__(self) -> None:
        self._gates: dict[Login | None, Gate] = {}

    def of(self, node: Node) -> Gate:
        """The one that the node's host is behind."""
        login = ssh.login_of(node)
        return self._gates.setdefault(login, Gate(login))
