"""Neither the key of a run nor its secrets are printed."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from typing import TYPE_CHECKING

import kubernetes_validate
import pytest

from tests.k8s.rendering import VERSIONS, documents, one

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli


def keys_in(text: str) -> list[str]:
    """All that looks like a run's key: 32 random bytes, in hexadecimal or base64."""
    return re.findall(r"\b[0-9a-f]{64}\b|\b[A-Za-z0-9+/]{43}=", text)


def test_the_runs_key_is_printed_nowhere_and_is_in_a_file_that_others_cannot_read(
    distlaunch: Cli, tmp_path: Path
) -> None:
    distlaunch.write("x.py", "print(1)\n")
    options = ("--image", "i", "--no-snapshot", "--nodes", "2", "x.py")
    printed = distlaunch("k8s", "--dry-run", *options)
    told = distlaunch("k8s", "--render-to", str(tmp_path / "out"), "--output", "json", *options)
    texts = (printed.stdout, printed.stderr, told.stdout, told.stderr)
    bare = [item for item in documents(printed.stdout) if item["kind"] != "ConfigMap"]
    alone = documents(distlaunch("k8s", "--dry-run", "--image", "i", "--no-snapshot", "x.py").stdout)

    agent = re.compile(r"agent.pyz[.\d]*: .*|\"agent.pyz[.\d]*\": \"[^\"]*\"|agent.pyz[^ ]*")
    assert not any(keys_in(agent.sub("", text)) for text in texts)
    (volume,) = [item for item in bare[-1]["spec"]["template"]["spec"]["volumes"] if item["name"] == "input"]
    assert {"secret": {"name": f"{bare[-1]['metadata']['name']}-key"}} in volume["projected"]["sources"]
    assert "-key | kubectl" not in printed.stdout
    (line,) = re.findall(
        r"^# First, as no output contains the key with which its nodes authenticate: (.*)$",
        printed.stdout,
        re.MULTILINE,
    )
    made = subprocess.run(
        ["sh", "-c", line.replace("kubectl create -f -", "cat")], check=True, capture_output=True, timeout=60
    )
    by_hand = json.loads(made.stdout)
    assert by_hand["metadata"]["name"] == f"{bare[-1]['metadata']['name']}-key"
    assert len(by_hand["stringData"]["key"]) == 44
    file = tmp_path / "out/run.yaml"
    assert file.stat().st_mode & 0o777 == 0o600
    secret = one(documents(file.read_text()), "Secret")
    assert re.fullmatch("[0-9a-f]{64}\n", secret["stringData"]["key"])
    kubernetes_validate.validate(secret, VERSIONS[-1], strict=True)
    assert "-key" not in json.dumps([item for item in alone if item["kind"] == "Job"]), (
        "a node that is alone needs none"
    )


def test_secrets_are_referred_to_and_never_rendered(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    done = distlaunch("k8s", "--dry-run", "--image", "i", "--secret", "TOKEN", "x.py", env={"TOKEN": "s3cr3t-value"})

    assert done.exit_code == 0, done.stderr
    assert "s3cr3t-value" not in done.stdout + done.stderr
    assert base64.b64encode(b"s3cr3t-value").decode() not in done.stdout
    (item,) = [item for item in documents(done.stdout) if item["kind"] == "Job"]
    env = item["spec"]["template"]["spec"]["containers"][0]["env"]
    name = item["metadata"]["name"]
    assert {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": name, "key": "TOKEN"}}} in env
    assert f'"name": "{name}"' in by_hand(done.stdout)


def test_urls_to_notify_are_in_a_secret_and_never_printed(distlaunch: Cli, tmp_path: Path) -> None:
    distlaunch.write("x.py", "")
    how = ("--image", "i", "--no-snapshot", "--notify", "https://example.org/t0k3n", "x.py")
    printed = distlaunch("k8s", "--dry-run", *how)
    listed = distlaunch("k8s", "--dry-run", "--output", "json", *how)
    written = distlaunch("k8s", "--render-to", str(tmp_path / "out"), *how)

    assert [done.exit_code for done in (printed, listed, written)] == [0, 0, 0], printed.stderr + written.stderr
    assert not any("t0k3n" in done.stdout + done.stderr for done in (printed, listed, written))
    without = "# It sends no notices, as no output contains their receivers: the file of --render-to has them\n"
    assert without in printed.stdout
    file = tmp_path / "out/run.yaml"
    assert file.stat().st_mode & 0o777 == 0o600
    assert without not in file.read_text()
    made = documents(file.read_text())
    secret = one(made, "Secret")
    assert json.loads(secret["stringData"]["notify"])["urls"] == ["https://example.org/t0k3n"]
    kubernetes_validate.validate(secret, VERSIONS[-1], strict=True)
    assert [item["kind"] for item in made if "t0k3n" in json.dumps(item)] == ["Secret"]
    (volume,) = [item for item in one(made, "Job")["spec"]["template"]["spec"]["volumes"] if item["name"] == "input"]
    assert {"secret": {"name": secret["metadata"]["name"]}} in volume["projected"]["sources"]


def by_hand(text: str) -> str:
    """The line with which a Secret is made before YAML is applied by hand."""
    (line,) = re.findall(r"^# First, as no file contains the secrets: (.*)$", text, re.MULTILINE)
    return str(line)


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_secret_that_is_made_by_hand_is_in_no_argv(distlaunch: Cli, tmp_path: Path, shell: str) -> None:
    """All users of the host see those while kubectl runs; quotes, dollars and line breaks are kept."""
    distlaunch.write("x.py", "")
    env = {"TOKEN": "s3cr3t-value", "KEY": "s3cr3t-\"'$HOME`x`\\n%s\nline\n", "EMPTY": ""}
    names = [word for name in env for word in ("--secret", name)]
    line = by_hand(distlaunch("k8s", "--dry-run", "--image", "i", *names, "x.py", env={**env}).stdout)
    kubectl = tmp_path / "kubectl"
    seen = tmp_path / "seen"
    lines = (f"cat > '{tmp_path}/stdin'", f'echo "$@" > "{seen}"', f'cat /proc/[0-9]*/cmdline >> "{seen}"', "exit 0")
    kubectl.write_text("\n".join(("#!/bin/sh", *lines, "")))
    kubectl.chmod(0o700)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    subprocess.run([shell, "-c", line], env={**os.environ, **env, **path}, timeout=60, check=True)

    assert b"s3cr3t" not in seen.read_bytes()
    assert base64.b64encode(b"s3cr3t-value") not in seen.read_bytes()
    made = json.loads((tmp_path / "stdin").read_text())
    assert {name: base64.b64decode(value).decode() for name, value in made["data"].items()} == env
    assert seen.read_text(errors="replace").startswith("create -f -\n")
