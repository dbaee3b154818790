"""Where facts come from: files below a root directory and the output of a few programs, or recordings of both."""

from __future__ import annotations

import os
from typing import List, Optional

from ..system.natural_order import natural

_RUN_S = 20.0
"""Time limit of a vendor's tool: nvidia-smi hangs on a node with a failed GPU."""


def recording(command: str) -> str:
    """The file name under which a command line's output is recorded."""
    return command.replace("/", "_")[:200]


class Tree:
    """The host's files (`/sys`, `/proc`, ...), or a recording of another host's; nothing here raises.

    Args:
        root: directory that stands for `/`.
        commands: directory of recorded output, one file per command line, named by `recording`; None runs the programs.
    """

    def __init__(self, root: str = "/", commands: Optional[str] = None) -> None:
        self.root = root.rstrip("/")
        self.commands = commands

    @property
    def live(self) -> bool:
        """Whether this is the host itself, on which system calls work as well."""
        return not self.root

    def path(self, path: str) -> str:
        """The actual path of a file in the tree."""
        return self.root + path

    def text(self, path: str) -> str:
        """A file's content without surrounding whitespace; empty if it cannot be read (sysfs: often EINVAL)."""
        try:
            with open(self.path(path), encoding="utf-8", errors="replace") as file:
                return file.read().strip()
        except OSError:
            return ""

    def number(self, path: str) -> Optional[int]:
        """A file's content as a number (`0x...`, too); None if it is not one."""
        try:
            return int(self.text(path), 0)
        except ValueError:
            return None

    def names(self, path: str) -> List[str]:
        """The names in a directory, in natural order; empty if it does not exist."""
        try:
            return sorted(os.listdir(self.path(path)), key=natural)
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        return os.path.exists(self.path(path))

    def usable(self, path: str) -> bool:
        """Whether this process may open the file, by the rules of its cgroup for devices as well; opens nothing."""
        return os.access(self.path(path), os.R_OK | os.W_OK)

    def real(self, path: str) -> str:
        """The path with all links resolved, as seen from the root; empty if nothing is there."""
        found = os.path.realpath(self.path(path))
        root = os.path.realpath(self.root or "/").rstrip("/")
        return found[len(root) :] if os.path.exists(found) else ""

    def linked(self, path: str) -> str:
        """The last component of a link's target: for `.../device/driver`, the driver's name."""
        return os.path.basename(self.real(path))

    def run(self, *argv: str) -> Optional[str]:
        """A program's output; None if it is missing, fails or hangs."""
        if self.commands is not None:
            try:
                with open(os.path.join(self.commands, recording(" ".join(argv))), encoding="utf-8") as file:
                    return file.read()
            except OSError:
                return None
        import subprocess

        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                timeout=_RUN_S, check=False, encoding="utf-8", errors="replace",
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout if done.returncode == 0 else None
