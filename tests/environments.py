"""Virtual environments with packages that others publish, made by uv once for all checkouts of this user."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.errors import NotAvailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LIMIT_S = 300
"""For one step, such as installing the packages."""

NETWORK = (
    "error sending request",
    "dns error",
    "client error (Connect)",
    "NewConnectionError",
    "name resolution",
    "timed out",
)
"""What uv and pip print if no package index can be reached."""


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes the environments of one kind, in a directory of the user's cache."""

    what: str
    """The packages, in words."""

    directory: str
    room_gb: float

    @property
    def offline(self) -> str:
        """How the reason for a skip begins if the packages cannot be downloaded."""
        return f"{self.what} cannot be fetched here"

    @property
    def broken(self) -> str:
        """How it begins if they are there and do not install; in CI this is no reason."""
        return f"{self.what} do not install"

    def cache(self) -> Path:
        """Where environments are kept."""
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / self.directory

    @contextmanager
    def locked(self, path: Path, what: str) -> Iterator[None]:
        """Hold a lock, so that two test runs do not make the same at once."""
        deadline = time.monotonic() + 4 * LIMIT_S
        with path.open("w") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise NotAvailableError(
                            f"{self.offline}: waited {4 * LIMIT_S} s for another process to {what}"
                        ) from None
                    time.sleep(0.5)
            yield

    def begin(self, directory: Path) -> None:
        """Remove what a killed process may have left there, and check that there is room."""
        shutil.rmtree(directory, ignore_errors=True)
        free_gb = shutil.disk_usage(self.cache()).free / 1e9
        if free_gb < self.room_gb:
            raise NotAvailableError(
                f"{self.offline}: too little disk: {self.room_gb:g} GB are needed in {self.cache()}, "
                f"{free_gb:.1f} are free"
            )
        print(f"installing {self.what} once, into {directory}", file=sys.stderr, flush=True)

    def install(self, prefix: Path, *requirements: str) -> None:
        """Make an environment with these packages."""
        interpreter = str(Path(sys.base_prefix) / "bin/python3")
        self.run(("uv", "venv", "--quiet", "--python", interpreter, str(prefix)))
        self.run(("uv", "pip", "install", "--quiet", "--python", str(prefix / "bin/python"), *requirements))

    def run(self, argv: Sequence[str]) -> None:
        """Run one step; if it fails, its output is the reason."""
        path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
        found = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1"}
        step = " ".join(Path(word).name for word in argv[:3])
        try:
            done = subprocess.run(
                argv, env=found, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL, check=False
            )
        except subprocess.TimeoutExpired:
            raise NotAvailableError(f"{self.offline}: {step} did not end within {LIMIT_S} s") from None
        if done.returncode:
            errors = done.stderr.strip()
            reason = self.offline if any(word in errors for word in NETWORK) else self.broken
            raise NotAvailableError(f"{reason}: {step} failed: {errors[-600:]}")


def digest(*parts: bytes) -> str:
    """A short hash of contents."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]
