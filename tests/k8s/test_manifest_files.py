"""The user's files travel in ConfigMaps."""

from __future__ import annotations

import base64
import io
import json
import os
import tarfile
from typing import TYPE_CHECKING

import pytest

from launcher.backends.kubernetes import config_maps
from tests.k8s.rendering import documents, rendered, spec_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli


@pytest.mark.slow
def test_files_travel_in_pieces_that_kubectl_apply_takes_and_the_agent_puts_together(
    distlaunch: Cli, tmp_path: Path
) -> None:
    from launcher.agent.system.unpack import unpack

    content = os.urandom(1_000_000)
    distlaunch.write("sub/däta.txt", "hello\n")
    (distlaunch.directory / "noise.bin").write_bytes(content)
    found = [item for item in rendered(distlaunch, "--env", f"V={'x' * 90_000}") if item["kind"] == "ConfigMap"]

    assert len(found) > 5
    # `kubectl apply` adds the object to its annotations, which have at most 262,144 bytes.
    assert max(len(json.dumps(item)) for item in found) < 258_000
    inside = tmp_path / "input"
    inside.mkdir()
    for item in found:
        for key, text in item["binaryData"].items():
            (inside / key).write_bytes(base64.b64decode(text))
    unpack(str(inside), str(tmp_path / "run"))
    assert (tmp_path / "run/files/noise.bin").read_bytes() == content
    assert (tmp_path / "run/files/sub/däta.txt").read_text() == "hello\n"


@pytest.mark.slow
def test_many_files_travel_in_large_pieces_and_too_many_are_refused_with_a_way_out(distlaunch: Cli) -> None:
    (distlaunch.directory / "noise.bin").write_bytes(os.urandom(5_000_000))
    found = [item for item in rendered(distlaunch) if item["kind"] == "ConfigMap"]
    (distlaunch.directory / "noise.bin").write_bytes(os.urandom(30_000_000))
    refused = distlaunch("k8s", "--dry-run", "--image", "i", "x.py")

    assert 6 <= len(found) <= 8
    assert refused.exit_code == 2
    assert "30 MB when packed" in refused.stderr
    assert "--workdir" in refused.stderr


def test_a_bundled_script_travels_with_the_run(distlaunch: Cli) -> None:
    done = distlaunch("k8s", "--dry-run", "--image", "i", "train.py", "--epochs", "1")
    found = documents(done.stdout)

    assert spec_of(found)["command"] == ["/distlaunch/run/bundled/train.py", "--epochs", "1"]
    pieces = {key: text for item in found if item["kind"] == "ConfigMap" for key, text in item["binaryData"].items()}
    joined = b"".join(base64.b64decode(pieces[key]) for key in sorted(pieces) if key.startswith("bundled.tgz."))
    with tarfile.open(fileobj=io.BytesIO(joined)) as tar:
        assert "train.py" in tar.getnames()


def test_a_script_outside_of_the_working_directory_is_refused_with_the_way_out(distlaunch: Cli, tmp_path: Path) -> None:
    distlaunch.write("x.py", "")
    distlaunch.write("sub/y.py", "")

    done = distlaunch("k8s", "--dry-run", "--image", "i", "../x.py", cwd=distlaunch.directory / "sub")

    assert done.exit_code == 2
    assert f"cd {distlaunch.directory}" in done.stderr


def test_the_agents_parts_need_no_more_configmaps_than_they_must() -> None:
    parts = {"a": bytes(81_000), "b": bytes(81_000), "c": bytes(98_000), "d": bytes(98_000)}

    found = config_maps.contents("{}", parts, {}, nodes=2)

    assert len(found) == 2, "two large parts fit in none together, and two small ones leave none of the large ones room"
    assert {key: base64.b64decode(text) for item in found for key, text in item["binaryData"].items()} == parts
