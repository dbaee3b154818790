"""The name distlaunch is not on the package index, so no text may tell a reader to install it from an index."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from launcher.system import install

ROOT = Path(__file__).parents[1]

_INSTALLS_FROM_INDEX = re.compile(
    r"""(?:pip3?|pipx|uv\ tool|conda|mamba|poetry|pixi)\s+(?:install|add|run)\b[^\n#;&|]*?
        (?<![\w./@}-])distlaunch(?![\w./-]) | \buv(?:x|\s+add)\s[^\n]*?(?<![\w./-])distlaunch\b(?![./])""",
    re.VERBOSE,
)


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("pip install distlaunch", True),
        ("pip install 'distlaunch[train]', or --python", True),
        ("uv pip install -U --quiet distlaunch==1.0", True),
        ("pipx install distlaunch", True),
        ("uvx distlaunch local x.py", True),
        ("uv add --dev distlaunch", True),
        ("pip install '.[train]'  # distlaunch needs it", False),
        ("pip install /dist/distlaunch-0.1-py3-none-any.whl", False),
        ("pip install torch; distlaunch local x.py", False),
    ],
)
def test_forbidden_commands_are_found(text: str, asks: bool) -> None:
    assert bool(_INSTALLS_FROM_INDEX.search(text)) is asks


def test_no_text_installs_distlaunch_from_an_index() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=60).stdout
    paths = [ROOT / name for name in listed.decode().split("\0") if name and name != "tests/test_install.py"]
    texts = {path: path.read_text(errors="replace") for path in paths if path.is_file()}
    assert len(texts) > 300

    wrong = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path, text in texts.items()
        for found in [_INSTALLS_FROM_INDEX.search(text)]
        if found
    ]

    assert wrong == []


def test_in_a_checkout_the_command_installs_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert shlex.split(install.command("slurm")) == ["pip", "install", "-e", f"{ROOT}[slurm]"]
    monkeypatch.setattr("launcher.system.install._ROOT", tmp_path / "a b")
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b/pyproject.toml").touch()
    assert shlex.split(install.command("k8s")) == ["pip", "install", "-e", f"{tmp_path}/a b[k8s]"]


@pytest.mark.parametrize("wheel_removed", [False, True])
def test_the_command_installs_the_wheel_again_or_the_packages_of_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wheel_removed: bool
) -> None:
    about = tmp_path / "site/distlaunch-9.dist-info"
    about.mkdir(parents=True)
    wheel = tmp_path / "the dist/distlaunch-9-py3-none-any.whl"
    required = (
        "Requires-Dist: torch>=2.4; extra == 'train'\n"
        'Requires-Dist: pyyaml>=6 ; extra == "train"\n'
        "Requires-Dist: typer\n"
    )
    (about / "METADATA").write_text(f"Metadata-Version: 2.4\nName: distlaunch\nVersion: 9\n{required}")
    (about / "direct_url.json").write_text(json.dumps({"url": wheel.as_uri(), "archive_info": {}}))
    if not wheel_removed:
        wheel.parent.mkdir()
        wheel.touch()
    monkeypatch.setattr("launcher.system.install._ROOT", tmp_path / "site")

    words = shlex.split(install.command("train"))

    assert words == ["pip", "install", *(["torch>=2.4", "pyyaml>=6"] if wheel_removed else [f"{wheel}[train]"])]
