"""The built wheel, installed into an empty environment outside the checkout, runs the bundled scripts."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout."""
    directory = tmp_path_factory.mktemp("dist")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return next(directory.glob("distlaunch-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`distlaunch` in an environment with the wheel and typer, but without torch."""
    venv = tmp_path_factory.mktemp("empty") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=120)
    site = next((venv / "lib").glob("python3*")) / "site-packages"
    pip = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(venv / "bin/python"), str(wheel)]
    subprocess.run(pip, check=True, timeout=300)
    assert not (site / "torch").exists()
    return venv / "bin/distlaunch"


def clean_environment(directory: Path) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**env, "DISTLAUNCH_RUNS_DIR": str(directory / "runs"), "HOME": str(directory)}


def test_the_wheel_has_the_scripts_as_data_and_two_top_level_packages(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert {name.split("/")[0] for name in names if not name.startswith("distlaunch-")} == {"launcher", "distlaunch"}
    for wanted in (
        "_data/train/train.py",
        "_data/train/reduce.py",
        "_data/playbooks/README.md",
        "py.typed",
        "agent/node/agent.py",
    ):
        assert f"launcher/{wanted}" in names
    assert {
        "distlaunch/__init__.py",
        "distlaunch/__main__.py",
        "distlaunch/py.typed",
        "launcher/agent/node/called.py",
    } <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.startswith("launcher/_data/train/.")]


def test_the_package_and_the_command_run_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("print('hello')\n")
    code = "import distlaunch; run = distlaunch.submit('hello.py'); "
    code += "print(run.wait(60).ok, [line.text for line in run.logs()])"
    argvs = [[str(installed.parent / "python"), "-c", code], [str(installed), "ls"]]
    runs = [
        subprocess.run(argv, cwd=tmp_path, env=clean_environment(tmp_path), capture_output=True, text=True, timeout=120)
        for argv in argvs
    ]
    assert [(done.returncode, done.stderr) for done in runs] == [(0, ""), (0, "")]
    assert runs[0].stdout == "True ['hello']\n"
    assert "hello.py" in runs[1].stdout
    (tmp_path / "launcher.py").write_text("")
    env = {**clean_environment(tmp_path), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([str(installed), "ls"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.splitlines()[0][:13]) == (4, "error[hidden]")
    assert f"{tmp_path / 'launcher.py'} hides" in done.stderr


@pytest.mark.torch
def test_reduce_runs_from_an_empty_directory_with_an_interpreter_that_has_torch(
    installed: Path, tmp_path: Path
) -> None:
    argv = [str(installed), "local", "--nodes", "2", "--nproc-per-node", "2", "--python", sys.executable]
    argv += ["--log-ranks", "all", "reduce.py"]
    done = subprocess.run(
        argv, cwd=tmp_path, env=clean_environment(tmp_path), capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stderr
    assert "using the bundled reduce.py" in done.stderr
    assert done.stdout.count("after 10") == 4


def test_without_torch_local_reports_it_and_how_to_install_it(installed: Path, wheel: Path, tmp_path: Path) -> None:
    env = {**clean_environment(tmp_path), "PATH": str(installed.parent)}
    done = subprocess.run(
        [str(installed), "local", "reduce.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 3
    assert "no torch here" in done.stderr
    assert f"pip install '{wheel}[train]', or name" in done.stderr
    asked = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--dry-run",
        "--no-deps",
        "--python",
        str(installed.parent / "python"),
    ]
    assert subprocess.run([*asked, f"{wheel}[train]"], capture_output=True, timeout=120).returncode == 0
    assert str(installed.parent / "python") in done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_agent_archive_is_the_same_for_the_same_sources() -> None:
    from launcher.payload import agent_archive, agent_packing

    archive = agent_archive.packed()
    assert archive == agent_packing.whole(agent_archive.sources())
    small = agent_archive.parts()
    assert sum(map(len, small.values())) < len(archive) / 2
    assert max(map(len, small.values())) < 150_000, "a package must be divided: `kubectl apply` takes 192,000 bytes"
    found = set()
    with zipfile.ZipFile(io.BytesIO(archive)) as whole:
        for part in small.values():
            with zipfile.ZipFile(io.BytesIO(part)) as lean:
                for name in set(lean.namelist()) - {"__main__.py"}:
                    # The same program, whose tracebacks name the same lines.
                    before, after = whole.read(name), lean.read(name)
                    assert (len(after.splitlines()), places(after)) == (len(before.splitlines()), places(before)), name
                    found.add(name)
        assert found == {name for name in whole.namelist() if name.endswith(".py")} - {"__main__.py"}


def test_the_kept_agent_archive_is_packed_anew_when_a_source_has_changed_or_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    from launcher.agent.system import trust
    from launcher.payload import agent_archive

    monkeypatch.setattr(agent_archive, "kept_agent", lambda: str(tmp_path / "kept"))  # not that of other processes
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    source = tmp_path / "agent.py"
    source.write_text("one = 1\n")
    monkeypatch.setattr(agent_archive, "sources", lambda: (str(source),))
    packed: list[tuple[str, ...]] = []

    def pack(sources: tuple[str, ...]) -> bytes:
        packed.append(sources)
        return source.read_bytes()

    monkeypatch.setattr("launcher.payload.agent_packing.whole", pack)

    def forget() -> None:
        agent_archive.packed.cache_clear()
        agent_archive.kept.cache_clear()

    request.addfinalizer(forget)  # later tests start real agents
    found = []
    for text in ("one = 1\n", "one = 1\n", "one = 2\n"):
        if source.read_text() != text:
            source.write_text(text)
        forget()
        found.append(agent_archive.packed())
    assert found == [b"one = 1\n", b"one = 1\n", b"one = 2\n"]
    assert len(packed) == 2

    kept = tmp_path / "kept"
    whole = kept.read_bytes()
    name = whole.index(trust.agent_name(b"one = 2\n").encode())
    for damaged in (
        whole[:-3],
        whole[:-3] + b"x" + whole[-2:],
        whole + b"more",
        whole[:name] + b"x" + whole[name + 1 :],
    ):
        kept.write_bytes(damaged)
        forget()
        assert agent_archive.packed() == b"one = 2\n"
        assert kept.read_bytes() == whole
    forget()
    assert len(packed) == 6
    for content in (b"one = 2\n", b"of an earlier version"):
        assert agent_archive.name(content) == trust.agent_name(content)
    assert len(packed) == 6


def places(source: bytes) -> list[tuple[str, int]]:
    """The statements of a program and all that is in them with their lines, except texts that are statements."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.stmt, ast.Call))]
    return [(ast.dump(tree), 0), *((type(node).__name__, node.lineno) for node in nodes)]


def test_the_agents_bytecode_is_used_but_not_by_another_version_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib.util import MAGIC_NUMBER

    from launcher.payload import agent_archive, agent_packing

    path = tmp_path / "agent.pyz"
    show = "import sys\nsys.path[:0] = sys.argv[1:]\n"
    show += "from distlaunch_agent import bytecode\nbytecode.use()\n"
    show += "from distlaunch_agent.ssh import calls\nprint(calls.main.__code__.co_filename)"
    for magic, compiled_in in ((MAGIC_NUMBER, "agent.pyz"), (b"\0\0\r\n", str(path))):
        monkeypatch.setattr("launcher.payload.agent_packing.MAGIC_NUMBER", magic)
        path.write_bytes(agent_packing.whole(agent_archive.sources()))

        done = subprocess.run((sys.executable, "-S", "-c", show, str(path)), capture_output=True, text=True, timeout=60)

        assert done.stdout == f"{compiled_in}/distlaunch_agent/ssh/calls.py\n", done.stderr


def test_another_version_of_python_keeps_its_bytecode_beside_the_agent_if_only_its_user_can_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from launcher.payload import agent_archive, agent_packing

    monkeypatch.setattr("launcher.payload.agent_packing.MAGIC_NUMBER", b"\0\0\r\n")
    path = tmp_path / "agent.pyz"
    path.write_bytes(agent_packing.whole(agent_archive.sources()))
    imports = f"import sys\nsys.path.insert(0, {str(path)!r})\nfrom distlaunch_agent import bytecode\n"
    then = "from distlaunch_agent.ssh import calls\nprint(type(calls.__loader__).__name__)"

    def loader(call: str) -> str:
        words = (sys.executable, "-S", "-c", f"{imports}bytecode.{call}()\n{then}")
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout

    assert loader("use") == "zipimporter\n"
    assert loader("compiled") == "Finder\n"
    (kept,) = set(tmp_path.iterdir()) - {path}
    assert (kept.stat().st_mode & 0o777, loader("use")) == (0o600, "Finder\n")

    kept.chmod(0o622)
    assert loader("use") == "zipimporter\n"
    assert (loader("compiled"), kept.stat().st_mode & 0o777) == ("Finder\n", 0o600)

    kept.write_bytes(kept.read_bytes()[:-1000])  # as a full disk leaves it
    assert loader("use") == "zipimporter\n"
    assert (loader("compiled"), loader("use")) == ("Finder\n", "Finder\n")
