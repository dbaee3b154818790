"""What the public's scripts need: packages in separate environments, made once for all checkouts of this user.

They are separate because many packages import whatever else they find, so a script has only what it needs. All are in
the user's cache, by a hash of their contents. torch and torchvision are those of the tests' own environment, so uv
links their files instead of downloading them again.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
import tempfile
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from testbed.errors import NotAvailableError
from tests.environments import Maker, digest
from tests.thirdparty.catalog import SDISTS

HERE = Path(__file__).parent
PACKAGES = {path.stem: path for path in sorted((HERE / "packages").glob("*.txt"))}
WRITER = "text"
"""The environment that writes the inputs."""

INPUTS = HERE / "inputs.py"
MAKER = Maker("the public's packages", "distlaunch-thirdparty", room_gb=4)


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


def shared() -> list[str]:
    """The packages that the tests' own environment has too, in the same versions."""
    try:
        return [f"{name}=={version(name)}" for name in ("torch", "torchvision")]
    except PackageNotFoundError as error:
        raise NotAvailableError(f"{MAKER.broken}: no {error.name} in the tests' own environment") from None


def ready(packages: str) -> Environment:
    """Return an environment, making what is missing, or raise `NotAvailableError` with the reason."""
    about = (sys.version, sys.base_prefix, *shared(), *SDISTS)
    wanted = (path.read_bytes() for path in PACKAGES.values())
    found = Environment(MAKER.cache() / digest(*wanted, *map(str.encode, about)), packages)
    if found.inputs.is_dir():
        return found
    MAKER.cache().mkdir(parents=True, exist_ok=True)
    with MAKER.locked(found.directory.with_suffix(".lock"), "install them"):
        complete = found.directory / "complete"
        if not complete.exists():
            make(found)
            complete.touch()
        if not found.inputs.is_dir():
            make_inputs(found)
    return found


def make(environment: Environment) -> None:
    """Install the packages and download the sources, replacing what a killed process may have left."""
    MAKER.begin(environment.directory)
    for name, path in PACKAGES.items():
        MAKER.install(replace(environment, packages=name).prefix, *shared(), "--requirement", str(path))
    fetch(environment)


def fetch(environment: Environment) -> None:
    """Download and unpack the source distributions whose scripts are in no wheel; pip checks their hashes."""
    environment.sources.mkdir()
    wanted = environment.directory / "sdists.txt"
    wanted.write_text("".join(f"{name} --hash=sha256:{sha}\n" for name, sha in SDISTS.items()), encoding="utf-8")
    names = ",".join(name.partition("==")[0] for name in SDISTS)
    with tempfile.TemporaryDirectory(dir=environment.directory) as archives:
        options = ("--quiet", "--no-deps", f"--no-binary={names}", "--require-hashes", "--dest", archives)
        MAKER.run(("uv", "tool", "run", "--quiet", "pip", "download", *options, "--requirement", str(wanted)))
        for archive in Path(archives).iterdir():
            with tarfile.open(archive) as file:
                file.extractall(environment.sources, filter="data")


def make_inputs(environment: Environment) -> None:
    """Write the scripts' inputs with the packages that read them."""
    directory = Path(tempfile.mkdtemp(prefix=".inputs-", dir=environment.directory))
    try:
        MAKER.run((str(replace(environment, packages=WRITER).python), str(INPUTS), str(directory)))
        directory.chmod(0o755)
        directory.rename(environment.inputs)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
