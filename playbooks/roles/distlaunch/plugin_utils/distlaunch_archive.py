"""The agent's archive. It also has what hosts run before they have the agent, as a start by hand has no launcher."""

from __future__ import annotations

import importlib.util
import io
import json
import marshal
import threading
import types
import zipfile
import zlib
from functools import cached_property
from typing import Any

_BYTECODE = ".bytecode"
"""The end of the name of the archive's bytecode, after the magic number of its Python."""

_PLACES = "places.json"
"""Where in it those modules are that are executed by themselves."""


class Archive:
    """The agent, as it goes to the hosts."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self._packing = threading.Lock()
        self._members = zipfile.ZipFile(io.BytesIO(content))
        self.rule = self._module("system/trust.py")
        """The rule about whose paths are trusted."""

        self.name = str(self.rule.agent_name(content))
        """The name of the agent on the hosts."""

    def compressed(self) -> tuple[dict[str, int], bytes]:
        """What is announced about the archive before it is sent, and the archive as it is sent.

        What each start reads of it is not compressed. Many hosts may ask at once: the first one's thread does the work.
        """
        with self._packing:
            return self._sent

    @cached_property
    def _sent(self) -> tuple[dict[str, int], bytes]:
        about = {"unpacked": len(self.content), "crc32": zlib.crc32(self.content)}
        return about, zlib.compress(self.content, 1)

    def boot(self) -> str:
        """The argument of `python -c` on a host: it reads a request with the `program` that answers it."""
        return str(self.login.code(self._text("ssh/python_version.py"), self._text("ssh/first.py")))

    def program(self) -> dict[str, str]:
        """The program that installs the agent, and becomes it: its text, and its code for Pythons of this number."""
        text = self.login.packed(self._text("ssh/boot.py").encode())
        return {"text": text, "code": self.login.packed(self._code("ssh/boot.py")), "magic": self._magic.hex()}

    def rule_text(self) -> str:
        """The rule, for a host without an agent."""
        return str(self.login.packed(self._text("system/trust.py").encode()))

    def places(self) -> dict[str, Any]:
        """Where the bytecode is in the archive, and in it the module that reads it: how many bytes, and from which on.

        It is for Pythons with this magic number.
        """
        whole = len(self._packed), self._start
        return {"magic": self._magic.hex(), "all": whole, "reader": self._place("bytecode.py")}

    @cached_property
    def login(self) -> Any:
        """What packs programs for a command line."""
        return self._module("ssh/login.py")

    @cached_property
    def _magic(self) -> bytes:
        """The number of the Pythons for which it is."""
        return bytes.fromhex(
            next(name for name in self._members.namelist() if name.endswith(_BYTECODE))[: -len(_BYTECODE)]
        )

    @cached_property
    def _packed(self) -> bytes:
        return self._members.read(self._magic.hex() + _BYTECODE)

    @cached_property
    def _start(self) -> int:
        """Where it begins in the archive, which has it as it is."""
        return self.content.index(self._packed, self._members.getinfo(self._magic.hex() + _BYTECODE).header_offset)

    def _place(self, name: str) -> tuple[int, int]:
        """How many bytes that module's code has, and where in the archive it begins."""
        size, at = json.loads(self._members.read(_PLACES))[f"distlaunch_agent/{name}"]
        return size, self._start + at

    def _text(self, name: str) -> str:
        return self._members.read(f"distlaunch_agent/{name}").decode()

    def _module(self, name: str) -> Any:
        """A module of the agent that imports no other one."""
        module = types.ModuleType(f"distlaunch_{name.rpartition('/')[2][:-3]}")
        own = self._magic == importlib.util.MAGIC_NUMBER
        code = marshal.loads(self._code(name)) if own else self._text(name)  # noqa: S302 - the run's own agent
        exec(code, module.__dict__)  # noqa: S102
        return module

    def _code(self, name: str) -> bytes:
        """The bytecode of one module."""
        size, start = self._place(name)
        return self.content[start : start + size]
