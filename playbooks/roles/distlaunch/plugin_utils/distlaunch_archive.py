"""The agent's archive. It also has what hosts run before they have the agent, as a start by hand has no launcher."""

from __future__ import annotations

import io
import types
import zipfile
import zlib
from functools import cache
from typing import Any


class Archive:
    """The agent, as it goes to the hosts."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self._members = zipfile.ZipFile(io.BytesIO(content))
        self.rule = self._module("system/trust.py")
        """The rule about whose paths are trusted."""

        self.name = str(self.rule.agent_name(content))
        """The name of the agent on the hosts."""

    @cache  # noqa: B019 - an archive lives as long as the play
    def compressed(self) -> bytes:
        """The archive as it is sent: its bytecode is not compressed, as that is read at each start."""
        return zlib.compress(self.content, 1)

    def rule_text(self) -> str:
        """The rule, for a host without an agent."""
        return self._text("system/trust.py")

    def boot(self) -> str:
        """The argument of `python -c` on a host: the program that installs the agent, and becomes it."""
        texts = (self._text("ssh/python_version.py"), self._text("ssh/boot.py"))
        return str(self._module("ssh/login.py").code(*texts))

    def _text(self, name: str) -> str:
        return self._members.read(f"distlaunch_agent/{name}").decode()

    def _module(self, name: str) -> Any:
        """A module of the agent that imports no other one."""
        module = types.ModuleType(f"distlaunch_{name.rpartition('/')[2][:-3]}")
        exec(self._text(name), module.__dict__)  # noqa: S102 - the run's own agent
        return module
