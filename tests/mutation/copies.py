"""Copies of the project in which changes are made and tests are run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.plugins.subjects import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.mutation.changes import Change


class Copy:
    """The project in a directory of its own, where changes are made."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "project"
        self.number = 0
        self.processes: set[subprocess.Popen[bytes]] = set()
        listed = subprocess.run(
            ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            source, target = ROOT / name, self.root / name
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        (self.root / ".venv").symlink_to(ROOT / ".venv")

    @contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        """Apply a change to a file; each state of it has its own time, as bytecode is cached by time and size."""
        path = self.root / change.path
        source = path.read_bytes()
        try:
            self.write(path, change.apply(source))
            yield
        finally:
            self.write(path, source)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file, with a modification time that no file has had before."""
        path.write_bytes(data)
        self.number += 2
        at = time.time() + self.number
        os.utime(path, (at, at))

    def env(self) -> dict[str, str]:
        """The environment, in which the copy's modules come first, also for what tests start."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST") and name != "CI"}
        return {**kept, "PYTHONPATH": str(self.root), "DISTLAUNCH_TEST_RESULTS": str(self.root.parent / "results")}

    def pytest(self, *args: str, limit_s: float) -> tuple[int | None, str]:
        """Run pytest; return its exit code, None if it did not end, and its output."""
        argv = (sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", *args)
        with (self.root.parent / "output").open("w+b") as file:
            process = subprocess.Popen(
                argv,
                cwd=self.root,
                env=self.env(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
            self.processes.add(process)
            try:
                code: int | None = process.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end(process)
                sweep(self.root)
                self.processes.discard(process)
            file.seek(0)
            return code, file.read().decode(errors="replace")

    def close(self) -> None:
        """End what runs in the copy."""
        for process in list(self.processes):
            end(process)
        sweep(self.root)

    def collect(self) -> list[str]:
        """The ids of all tests."""
        code, output = self.pytest("--collect-only", limit_s=300)
        if code:
            raise SystemExit(f"error: the tests cannot be collected:\n{output[-3000:]}")
        return [line for line in output.splitlines() if line.startswith("tests/") and "::" in line]


def sweep(root: Path) -> None:
    """End what a wrong program has left running: all processes with the copy in their environment."""
    mark = f"PYTHONPATH={root}\0".encode()
    for entry in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            handle = os.pidfd_open(int(entry))
            try:
                if mark in Path(f"/proc/{entry}/environ").read_bytes():
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a run and all that it has started; what has sessions of its own ends with its agents."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)  # pytest takes clusters down
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
