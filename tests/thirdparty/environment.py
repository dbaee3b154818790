"""What the public's scripts need: packages in separate environments, made once for all checkouts of this user.

They are separate because many packages import whatever else they find, so a script has only what it needs. All are in
the user's cache, by a hash of their contents. torch and torchvision are those of the tests' own environment, so uv
links their files instead of downloading them again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.errors import NotAvailableError
from tests.thirdparty.catalog import SDISTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE = Path(__file__).parent
PACKAGES = {path.stem: path for path in sorted((HERE / "packages").glob("*.txt"))}
WRITER = "text"
"""The environment that writes the inputs."""

INPUTS = HERE / "inputs.py"
LIMIT_S = 300
"""For one step, such as installing the packages."""

ROOM_GB = 4
OFFLINE = "the public's packages cannot be fetched here"
BROKEN = "the public's packages do not install"
"""How reasons for skips begin; in CI the second one is no reason."""

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
class Environment:
    """Packages, sources that are in no wheel, and the inputs of the scripts."""

    directory: Path
    packages: str

    @property
    def prefix(self) -> Path:
        """Where it is installed."""
        return self.directory / f"env-{self.packages}"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.prefix / "bin/python"

    @property
    def torchrun(self) -> Path:
        """The torchrun of its torch."""
        return self.prefix / "bin/torchrun"

    @property
    def site(self) -> Path:
        """Where its packages are."""
        (found,) = (self.prefix / "lib").glob("python*/site-packages")
        return found

    @property
    def sources(self) -> Path:
        """Where the source distributions are, unpacked."""
        return self.directory / "sources"

    @property
    def inputs(self) -> Path:
        """What `inputs.py` has written."""
        return self.directory / f"inputs-{digest(INPUTS.read_bytes())}"


def digest(*parts: bytes) -> str:
    """A short hash of contents."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def shared() -> list[str]:
    """The packages that the tests' own environment has too, in the same versions."""
    try:
        return [f"{name}=={version(name)}" for name in ("torch", "torchvision")]
    except PackageNotFoundError as error:
        raise NotAvailableError(f"{BROKEN}: no {error.name} in the tests' own environment") from None


def cache() -> Path:
    """Where environments are kept, for all checkouts of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "distlaunch-thirdparty"


def ready(packages: str) -> Environment:
    """Return an environment, making what is missing, or raise `NotAvailableError` with the reason."""
    about = (sys.version, sys.base_prefix, *shared(), *SDISTS)
    wanted = (path.read_bytes() for path in PACKAGES.values())
    found = Environment(cache() / digest(*wanted, *map(str.encode, about)), packages)
    if found.inputs.is_dir():
        return found
    cache().mkdir(parents=True, exist_ok=True)
    with locked(found.directory.with_suffix(".lock"), "install them"):
        complete = found.directory / "complete"
        if not complete.exists():
            make(found)
            complete.touch()
        if not found.inputs.is_dir():
            make_inputs(found)
    return found


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
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
                        f"{OFFLINE}: waited {4 * LIMIT_S} s for another process to {what}"
                    ) from None
                time.sleep(0.5)
        yield


def make(environment: Environment) -> None:
    """Install the packages and download the sources, replacing what a killed process may have left."""
    shutil.rmtree(environment.directory, ignore_errors=True)
    free_gb = shutil.disk_usage(cache()).free / 1e9
    if free_gb < ROOM_GB:
        raise NotAvailableError(
            f"{OFFLINE}: too little disk: {ROOM_GB} GB are needed in {cache()}, {free_gb:.1f} are free"
        )
    print(f"installing the public's packages once, into {environment.directory}", file=sys.stderr, flush=True)
    interpreter = str(Path(sys.base_prefix) / "bin/python3")
    for name, path in PACKAGES.items():
        one = replace(environment, packages=name)
        run(("uv", "venv", "--quiet", "--python", interpreter, str(one.prefix)))
        argv = ("uv", "pip", "install", "--quiet", "--python", str(one.python))
        run((*argv, *shared(), "--requirement", str(path)))
    fetch(environment)


def fetch(environment: Environment) -> None:
    """Download and unpack the source distributions whose scripts are in no wheel; pip checks their hashes."""
    environment.sources.mkdir()
    wanted = environment.directory / "sdists.txt"
    wanted.write_text("".join(f"{name} --hash=sha256:{sha}\n" for name, sha in SDISTS.items()), encoding="utf-8")
    names = ",".join(name.partition("==")[0] for name in SDISTS)
    with tempfile.TemporaryDirectory(dir=environment.directory) as archives:
        options = ("--quiet", "--no-deps", f"--no-binary={names}", "--require-hashes", "--dest", archives)
        run(("uv", "tool", "run", "--quiet", "pip", "download", *options, "--requirement", str(wanted)))
        for archive in Path(archives).iterdir():
            with tarfile.open(archive) as file:
                file.extractall(environment.sources, filter="data")


def make_inputs(environment: Environment) -> None:
    """Write the scripts' inputs with the packages that read them."""
    directory = Path(tempfile.mkdtemp(prefix=".inputs-", dir=environment.directory))
    try:
        run((str(replace(environment, packages=WRITER).python), str(INPUTS), str(directory)))
        directory.chmod(0o755)
        directory.rename(environment.inputs)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run(argv: Sequence[str]) -> None:
    """Run one step; if it fails, its output is the reason."""
    found = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}", "HF_HUB_OFFLINE": "1"}
    step = " ".join(Path(word).name for word in argv[:3])
    try:
        done = subprocess.run(
            argv, env=found, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotAvailableError(f"{OFFLINE}: {step} did not end within {LIMIT_S} s") from None
    if done.returncode:
        errors = done.stderr.strip()
        reason = OFFLINE if any(word in errors for word in NETWORK) else BROKEN
        raise NotAvailableError(f"{reason}: {step} failed: {errors[-600:]}")
