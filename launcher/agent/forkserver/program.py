"""What the workers run, and what its text shows about how to start it."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from types import CodeType
from typing import List, Optional, Sequence

from . import glance
from .guess import MAYBE, NO, SURELY

_PRELOAD = rb"(?m)^# distlaunch: preload ([\w., ]+?) *$"
_DDP = rb"\bDistributedDataParallel\b"
_OF_DYNAMO = rb"\bTORCH(DYNAMO|INDUCTOR|_LOGS|_COMPILE|_TRACE)"


class Program:
    """What the workers run, prepared once by the fork server."""

    def __init__(self, command: List[str], kind: str, cwd: str, options: Sequence[str] = ()) -> None:
        """`options`: those of the interpreter."""
        self.kind = kind
        self.options = list(options)
        self.args = command[1:]
        self.target = command[0]
        self.path = os.path.join(cwd, command[0]) if kind == "script" else command[0]
        """The absolute path of a script, or the name of a module or program."""

        self.directory = os.path.dirname(os.path.realpath(self.path)) if kind == "script" else cwd
        self.code: Optional[CodeType] = None

    def compile(self) -> None:
        """Compile the script once for all workers; a `SyntaxError` or `OSError` is the user's."""
        if self.kind == "script":
            self.code = compile(self._text(), self.path, "exec", dont_inherit=True)

    def _text(self) -> bytes:
        """The script's text; does not block if a pipe has taken its place."""
        with open(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "no file", self.path)
            return file.read()

    def preloads(self) -> List[str]:
        """Modules that the script names in a comment: `# distlaunch: preload torch._dynamo, torchvision`."""
        if self.kind != "script":
            return []
        text = self._text()
        named = re.findall(_PRELOAD, text) if b"distlaunch: preload" in text else []
        return [name.strip().decode() for names in named for name in names.split(b",")]

    def uses_ddp(self) -> bool:
        """Whether the script names DistributedDataParallel, which imports torch._dynamo, as long as torch itself.

        Not if it names a variable that torch._dynamo reads when it is imported: the script may set that later.
        """
        text = self._text() if self.kind == "script" else b""
        named = b"DistributedDataParallel" in text and re.search(_DDP, text) is not None
        return named and re.search(_OF_DYNAMO, text) is None

    def wants_torch(self) -> int:
        """Whether the workers will import torch: NO, MAYBE or SURELY. A wrong guess only costs time."""
        if self.kind == "program":
            return NO
        if self.kind == "function":  # the agent knows more of it
            return MAYBE
        if self.kind == "script" and glance.surely_imports_torch(self._text()):
            return SURELY
        from . import imports

        search = [self.directory, *sys.path]
        if self.kind == "module":
            return imports.leads_to_torch(self.target, search)
        return imports.lead_to_torch([self.path], search)

    def early_variables(self) -> List[str]:
        """Variables that the text sets before it first imports torch, and that torch or numpy read when imported."""
        search = [self.directory, *sys.path]
        if self.kind == "script" and glance.sets_no_variables(self._text(), search):
            return []
        from . import early, imports

        own = (
            [self.path]
            if self.kind == "script"
            else imports.files_of_main(self.target, search)
            if self.kind == "module"
            else []
        )
        return early.variables(own or [], search)

    def substitute(self, **macros: str) -> None:
        """Replace `${NAME}` in the arguments, as torchrun does."""
        from string import Template

        self.args = [Template(arg).safe_substitute(macros) for arg in self.args]

    def argv(self, python: str, *, through: str = "") -> List[str]:
        """The command that torchrun would execute for a worker. `through`: a module that is to run it."""
        if self.kind == "program":
            return [self.target, *self.args]
        runs = [*(["-m", through] if through else []), *(["-m"] if self.kind == "module" else [])]
        return [python, *self.options, "-u", *runs, self.target, *self.args]
