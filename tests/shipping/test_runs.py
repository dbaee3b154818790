"""`--env-ship`, as a user gives it: workers import from the node's own disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.shipping import environments

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An environment."""
    return environments.venv(tmp_path / "source")


def test_workers_run_in_the_environment_that_was_brought(distlaunch: Cli, source: Path, tmp_path: Path) -> None:
    script = str(distlaunch.write("where.py", environments.SCRIPT))
    store = tmp_path / "store"
    words = ["local", "--nodes", "2", "--nproc-per-node", "2", "--env-ship", str(source), "--env-ship-dir", str(store)]
    words += ["--rdzv-timeout", "30d"]
    first, again = distlaunch(*words, script), distlaunch(*words, script)

    for done in (first, again):
        assert done.exit_code == 0, done.stderr
    run = environments.latest(distlaunch)
    environments.check(environments.lines(distlaunch("logs", run).stdout), 4, store)
    assert [event["received_bytes"] for event in events(distlaunch, run)] == [0, 0]


def test_few_open_files_are_enough_for_many_nodes_and_are_those_of_the_workers(
    distlaunch: Cli, source: Path, tmp_path: Path
) -> None:
    limit = "import resource\nprint('files', resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    script = str(distlaunch.write("where.py", limit))
    words = ["local", "--nodes", "16", "--nproc-per-node", "1", "--env-ship", str(source), "--log-ranks", "all"]
    command = [sys.executable, "-m", "launcher", *words, "--env-ship-dir", str(tmp_path / "store"), script]
    limited = ["sh", "-c", 'ulimit -Sn 24; ulimit -Hn 8192; exec "$@"', "sh", *command]

    done = subprocess.run(
        limited, env=distlaunch.env(), cwd=distlaunch.directory, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert [line.split("] ")[1] for line in done.stdout.splitlines()] == 16 * ["files 24"]


def events(distlaunch: Cli, run: str) -> list[dict[str, Any]]:
    """What the nodes of a run say of the environment."""
    (directory,) = distlaunch.directory.rglob(run)
    streams = [path.read_text().splitlines() for path in sorted(directory.glob("nodes/*/stream"))]
    return [json.loads(line) for stream in streams for line in stream if line.startswith('{"event":"environment"')]


def test_a_packed_environment_is_unpacked_on_the_node(distlaunch: Cli, source: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed.tar.gz"
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(source, ".")
    script = str(distlaunch.write("where.py", environments.SCRIPT))
    words = ("local", "--nproc-per-node", "1", "--env-ship", str(packed), "--env-ship-dir", str(tmp_path / "store"))
    done = distlaunch(*words, script)

    assert done.exit_code == 0, done.stderr
    environments.check(environments.lines(done.stdout), 1, tmp_path / "store")
    assert not list((tmp_path / "store").glob("unpacked/*"))


def test_what_conda_pack_makes_is_unpacked_by_its_own_program(distlaunch: Cli, tmp_path: Path) -> None:
    """`conda-unpack` writes into the environment, which must not change what is kept of its files."""
    source = environments.venv(tmp_path / "source")
    (source / "text").write_text("prefix: /old/prefix\n")
    unpack = source / "bin/conda-unpack"
    unpack.write_text(
        "import pathlib, sys\n"
        "text = pathlib.Path(sys.argv[0]).parents[1] / 'text'\n"
        "text.write_text(text.read_text().replace('/old/prefix', str(text.parent)))\n"
    )
    unpack.chmod(0o755)
    packed = tmp_path / "packed.tar.gz"
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(source, ".")
    script = str(
        distlaunch.write("text.py", "import pathlib, sys\nprint(pathlib.Path(sys.prefix, 'text').read_text())\n")
    )
    words = ("local", "--nproc-per-node", "1", "--env-ship", str(packed), "--env-ship-dir", str(tmp_path / "store"))
    done, again = distlaunch(*words, script), distlaunch(*words, script)

    assert done.exit_code == again.exit_code == 0, done.stderr
    assert f"prefix: {tmp_path}/store/envs/" in done.stdout
    assert again.stdout == done.stdout


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("nowhere", "nowhere' does not exist"),
        ("where.py", "is no directory, uv.lock or packed environment"),
        (".", "is not a Python environment: it has no bin/python"),
    ],
)
def test_what_is_no_environment_is_refused_before_anything_starts(distlaunch: Cli, named: str, says: str) -> None:
    script = str(distlaunch.write("where.py", environments.SCRIPT))
    done = distlaunch("local", "--env-ship", named, script)

    assert done.exit_code == 2
    assert says in done.stderr


def test_an_elastic_run_brings_no_environment(distlaunch: Cli, source: Path) -> None:
    done = distlaunch(
        "local", "--nodes", "1:2", "--env-ship", str(source), str(distlaunch.write("where.py", environments.SCRIPT))
    )

    assert done.exit_code == 2
    assert "--env-ship needs a fixed number of nodes" in done.stderr


def test_a_base_python_that_a_node_lacks_is_named(distlaunch: Cli, source: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed.tar"
    settings = source / "pyvenv.cfg"
    settings.write_text("home = /usr/lost/bin\n")
    with tarfile.open(packed, "w") as tar:
        tar.add(source, ".")
    words = ("--nproc-per-node", "1", "--env-ship", str(packed), "--env-ship-dir", str(tmp_path / "store"))
    done = distlaunch("local", *words, str(distlaunch.write("where.py", environments.SCRIPT)))

    assert done.exit_code == 1
    assert "is based on is missing: /usr/lost/bin" in done.stderr


def test_the_run_can_be_cancelled_while_its_environment_comes(distlaunch: Cli, source: Path, tmp_path: Path) -> None:
    """Its file never ends, so nothing would come after it."""
    packed = tmp_path / "packed.tar.gz"
    os.mkfifo(packed)
    words = ("--nproc-per-node", "1", "--env-ship", str(packed), "--env-ship-dir", str(tmp_path / "store"))
    started = distlaunch("local", "--detach", *words, str(distlaunch.write("where.py", environments.SCRIPT)))
    assert started.exit_code == 0, started.stderr
    run = started.stdout.strip()
    (directory,) = distlaunch.directory.rglob(run)
    limit = time.monotonic() + environments.LIMIT_S
    while not (directory / "nodes/0/stream").read_text():
        assert time.monotonic() < limit
        time.sleep(0.02)
    cancelled = distlaunch("cancel", run)
    status = json.loads(distlaunch("wait", run, "--output", "json").stdout)

    assert cancelled.exit_code == 0, cancelled.stderr
    assert json.dumps(status).count('"cancelled"')


def test_what_was_not_used_for_longest_is_removed_above_the_quota(distlaunch: Cli, tmp_path: Path) -> None:
    script = str(distlaunch.write("where.py", environments.SCRIPT))
    store = tmp_path / "store"
    words = ("local", "--nproc-per-node", "1", "--env-ship-dir", str(store), "--env-ship-quota", "5MB", script)
    for name in ("first", "second"):
        source = environments.venv(tmp_path / name)
        (source / "large.bin").write_bytes(os.urandom(4 << 20))
        done = distlaunch(*words[:-1], "--env-ship", str(source), script)
        assert done.exit_code == 0, done.stderr

    (kept,) = store.glob("envs/*.json")
    assert json.loads(kept.read_text())["source"] == str(tmp_path / "second")
    assert len(list(store.glob("envs/*/env"))) == 1
    assert sum(path.stat().st_size for path in store.rglob("objects/*/*")) < 5 << 20
