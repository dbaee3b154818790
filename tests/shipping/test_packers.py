"""`--env-ship` of what mksquashfs, conda-pack and uv really make."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed import packages
from testbed.errors import NotAvailableError
from tests.shipping import environments

if TYPE_CHECKING:
    from tests.command import Cli, Result

UV = shutil.which("uv") or str(environments.ROOT / ".venv-uv/bin/uv")
OWN = environments.SCRIPT + "print('tool:', os.popen('tool').read())\n"


def brought(distlaunch: Cli, source: Path, store: Path, **more: str | None) -> Result:
    """A run that brings this, and has printed where its module and its program's module are from."""
    script = str(distlaunch.write("where.py", OWN))
    words = ("--nproc-per-node", "1", "--env-ship", str(source), "--env-ship-dir", str(store))
    done = distlaunch("local", *words, script, env=more)
    assert done.exit_code == 0, done.stderr
    environments.check(environments.lines(done.stdout), 1, store)
    return done


def test_squashfs(distlaunch: Cli, tmp_path: Path) -> None:
    try:
        packages.require({"mksquashfs": "squashfs-tools"})
    except NotAvailableError as error:
        pytest.skip(str(error))
    source, packed = environments.venv(tmp_path / "source"), tmp_path / "packed.squashfs"
    subprocess.run(["mksquashfs", source, packed, "-quiet", "-no-progress"], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(source)

    done = brought(distlaunch, packed, tmp_path / "store")

    assert f"tool: {tmp_path}/store/envs/" in done.stdout


def test_conda_pack(distlaunch: Cli, tmp_path: Path) -> None:
    source, packed = environments.venv(tmp_path / "source"), tmp_path / "packed.tar.gz"
    (source / "conda-meta").mkdir()
    (source / "conda-meta/history").touch()
    pack = Path(sys.executable).with_name("conda-pack")
    subprocess.run([pack, "--prefix", source, "--output", packed, "--quiet"], check=True)
    shutil.rmtree(source)

    done = brought(distlaunch, packed, tmp_path / "store")

    assert f"tool: {tmp_path}/store/envs/" in done.stdout


@pytest.mark.skipif(not os.access(UV, os.X_OK), reason="uv is neither on PATH nor in .venv-uv")
def test_a_project_of_uv(distlaunch: Cli, tmp_path: Path) -> None:
    """Its lock names a package that is beside it, so no index is needed."""
    project, package = tmp_path / "project", tmp_path / "project/brought"
    (package / "src/brought").mkdir(parents=True)
    (package / "src/brought/__init__.py").write_text("WHERE = __file__\ndef main() -> None:\n    print(WHERE)\n")
    built = '[build-system]\nrequires = ["uv_build"]\nbuild-backend = "uv_build"\n'
    about = '[project]\nname = "brought"\nversion = "1"\n[project.scripts]\ntool = "brought:main"\n'
    (package / "pyproject.toml").write_text(about + built)
    (project / "pyproject.toml").write_text(
        '[project]\nname = "x"\nversion = "1"\nrequires-python = ">=3.9"\ndependencies = ["brought"]\n'
        '[tool.uv.sources]\nbrought = {path = "brought"}\n'
    )
    env = {"UV_PYTHON": environments.SYSTEM, "UV_CACHE_DIR": str(tmp_path / "cache"), "UV_OFFLINE": "1"}
    subprocess.run([UV, "lock", "--quiet", "--project", project], env={**os.environ, **env}, check=True)

    path = f"{Path(UV).parent}:{os.environ['PATH']}"
    done = brought(distlaunch, project, tmp_path / "store", PATH=path, **env)

    assert f"tool: {tmp_path}/store/envs/" in done.stdout
