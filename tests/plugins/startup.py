"""What every Python of the tests' environment does as it starts, if a test run asks for it; hooks.py installs it.

- In the fast tier, `import torch` is an error that names the test.
- With coverage, each line of the project that runs is recorded at once, in a file with a byte per line that all
  processes share. There is no exit hook, no thread, no open file and nothing to save, so scripts see what they always
  see, and the lines of a killed process are complete. A line that any process has recorded is not looked at again, so
  most of the cost is that of finding that a function is not the project's.

coverage.py itself costs as much as ten starts of Python in each process: too much where most run for a tenth of a
second.
"""

from __future__ import annotations

import marshal
import os
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, FrameType, ModuleType
    from typing import Any

WITHOUT_TORCH = "TESTS_WITHOUT_TORCH"
"""The variable that names the file in which forbidden imports are recorded."""

MARK = ".measured"
"""The file in the environment that names the directory for coverage, and the process that it is for."""

_THREADING = -1
_PARENT = "torch.distributed.run", "torchrun"


class NoTorch:
    """Finds torch, and fails when it is imported; asking whether it is there works as usual."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """Torch's place with another loader."""
        if name != "torch":
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = self  # type: ignore[assignment]
        return spec

    def create_module(self, _spec: Any) -> None:
        """As usual."""

    def exec_module(self, _module: ModuleType) -> None:
        """Record it and fail."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "a test").partition(" (")[0]
        command = " ".join(getattr(sys, "orig_argv", sys.argv))
        text = f"torch is imported in the fast tier, by {test}: mark it `torch` (docs/testing.md)"
        fd = posix.open(os.environ[WITHOUT_TORCH], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        posix.write(fd, f"{test}\t{command[:500]}\n".encode(errors="replace"))
        posix.close(fd)
        raise ImportError(text)


class Lines:
    """Which lines of the project have run."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        with open(os.path.join(directory, "index"), "rb") as file:
            index = marshal.loads(file.read())
        self.root: str = index["root"] + "/"
        self.offsets: dict[str, int] = index["offsets"]
        self.size: int = index["size"]
        self.by_test: bool = index["by_test"]
        self.places: dict[str, int | None] = {}
        self.left: dict[tuple[str, int, str], list[int]] = {}
        self.path = ""
        self.seen = bytearray()
        self.load()

    def load(self) -> None:
        """Start with the lines that all processes have recorded so far, or, test by test, those of this test."""
        path = os.path.join(self.directory, "lines")
        if self.by_test:
            path = os.path.join(self.directory, "tests", self.current())
        seen = bytearray(self.size)
        try:
            with open(path, "rb") as file:
                known = file.read()
            seen[: len(known)] = known
        except OSError:
            pass
        self.path, self.seen, self.left = path, seen, {}

    def current(self) -> str:
        """The test that runs now in the process that started this one; over SSH that process is unknown."""
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        directory = os.path.join(self.directory, "current")
        try:
            if worker or os.environ.get("PYTEST_CURRENT_TEST"):
                return os.readlink(os.path.join(directory, worker or "main"))
            return "+".join(sorted(os.readlink(os.path.join(directory, name)) for name in os.listdir(directory)))
        except OSError:
            return "none"

    def place(self, name: str) -> int | None:
        """The offset of a file's lines; None: the file is not the project's."""
        path = name
        if "distlaunch_agent/" in name:
            path = self.root + "launcher/agent/" + name.rpartition("distlaunch_agent/")[2]
        elif "/roles/distlaunch/" in name:  # Ansible uses a copy in the run's directory
            path = self.root + "playbooks/roles/distlaunch/" + name.rpartition("/roles/distlaunch/")[2]
        elif not name.startswith(("/", "<")):
            path = os.path.abspath(name)
        found = self.offsets.get(path[len(self.root) :]) if path.startswith(self.root) else None
        if name.endswith("/threading.py"):
            found = _THREADING
        self.places[name] = found
        return found

    def caller(self) -> Callable[..., Any]:
        """The function that is called at each call of a function: most are not the project's, so it costs little."""
        places, unseen, line = self.places, self.unseen, self.line

        def call(frame: FrameType, _event: str, _arg: object) -> Callable[..., Any] | None:
            code = frame.f_code
            try:
                start = places[code.co_filename]
            except KeyError:
                start = self.place(code.co_filename)
            if start is None:
                return None
            if start == _THREADING:
                if "_trace_hook" in frame.f_globals:
                    frame.f_globals["_trace_hook"] = call  # as threading.settrace() does, but without an import
                return None
            return line if unseen(code, start) else None

        return call

    def unseen(self, code: CodeType, start: int) -> list[int]:
        """Lines of a function that have not been recorded yet, and perhaps some that have."""
        key = (code.co_filename, code.co_firstlineno, code.co_name)
        left = self.left.get(key)
        if left is None:
            left = self.left[key] = sorted({start + line for _, _, line in code.co_lines() if line})
        seen = self.seen
        while (last := left[-1:]) and seen[last[0]]:
            del left[-1:]  # several threads may do that
        return left

    def line(self, frame: FrameType, event: str, _arg: object) -> Callable[..., Any]:
        """A line is about to run."""
        if event == "line":
            place = (self.places.get(frame.f_code.co_filename) or 0) + frame.f_lineno
            if place < self.size and not self.seen[place]:
                self.seen[place] = 1
                self.record(place)
        return self.line

    def record(self, place: int) -> None:
        """Record a line for all processes."""
        try:
            fd = posix.open(self.path, posix.O_WRONLY | posix.O_CREAT | posix.O_CLOEXEC, 0o666)
            try:
                posix.pwrite(fd, b"\1", place)
            finally:
                posix.close(fd)
        except OSError:
            pass  # another root directory, or no file descriptor left

    def start(self) -> None:
        """Trace all functions from now on, and hide that."""
        gettrace = sys.gettrace
        call = self.caller()

        def hidden() -> Any:
            found = gettrace()
            return None if found is call else found

        sys.gettrace = hidden
        if self.by_test:
            os.register_at_fork(after_in_child=self.load)
        skip_libraries(gettrace, call)
        sys.settrace(call)


def skip_libraries(gettrace: Callable[[], object], call: Callable[..., Any]) -> None:
    """Trace nothing while a module of a library or of Python is imported: no code of the project runs then."""
    loader: Any = sys.modules["_frozen_importlib_external"].SourceFileLoader
    libraries, exec_module = (f"{sys.prefix}/lib/", f"{sys.base_prefix}/lib/"), loader.exec_module

    def exec_untraced(self: Any, module: ModuleType) -> None:
        if gettrace() is not call or not self.path.startswith(libraries):
            exec_module(self, module)
            return
        sys.settrace(None)
        try:
            exec_module(self, module)
        finally:
            sys.settrace(call)

    loader.exec_module = exec_untraced


def measure() -> Lines | None:
    """Start to measure if a running test run asks for it, except in torchrun's own processes."""
    if any(arg.endswith(_PARENT) for arg in getattr(sys, "orig_argv", [])[1:4]):
        return None
    try:
        with open(os.path.join(sys.prefix, MARK), encoding="utf-8") as file:
            directory, pid = file.read().split("\n")[:2]
        if not os.path.exists(f"/proc/{pid}"):
            return None
        lines = Lines(directory)
    except (OSError, ValueError, EOFError):  # in a container, or as it ends
        return None
    lines.start()
    return lines


lines = None
if __name__ == "_tests_startup":  # installed, and imported as Python starts
    if os.environ.get(WITHOUT_TORCH):
        sys.meta_path.insert(0, NoTorch())
    if os.path.exists(os.path.join(sys.prefix, MARK)):
        lines = measure()
