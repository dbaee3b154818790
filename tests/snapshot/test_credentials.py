"""Files with keys, tokens and passwords are sent only on request, and a dry run lists all files that would be sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.errors import SpecError
from launcher.payload import snapshot

if TYPE_CHECKING:
    from tests.command import Cli

HERE = Path(__file__).parents[2]
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1r\n-----END OPENSSH PRIVATE KEY-----\n"

ACCOUNT = json.dumps(
    {"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\nMII", "client_email": "a@b"}
)

KUBECONFIG = "apiVersion: v1\nkind: Config\nusers:\n- name: a\n  user:\n    token: eyJabc\n"

REFUSED = {
    ".env": "A=1\n",
    "sub/.env.production": "",
    ".envrc": "",
    "prod.env": "DEBUG=1\nexport WANDB_API_KEY='0123456789abcdef'\n",
    ".aws/credentials": "",
    ".aws/sso/cache/0f.json": "{}",
    "conf/settings.ini": "[default]\naws_secret_access_key = abc\n",
    ".ssh/id_rsa": "",
    ".ssh/work": "",
    "keys/id_ed25519": "",
    "server.pem": "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n" + KEY,
    "deploy.key": KEY,
    "deploy": KEY,
    "renamed.dat": KEY,
    "pgp.asc": "-----BEGIN PGP PRIVATE KEY BLOCK-----\n",
    "login.ppk": "",
    "store.p12": "",
    "release.jks": "",
    ".netrc": "",
    "_netrc": "",
    ".pgpass": "",
    ".pypirc": "",
    ".git-credentials": "",
    ".npmrc": "//host/:_authToken=abc\n",
    "pip.conf": "[global]\nindex-url = https://me:pw@host/simple\n",
    ".kaggle/kaggle.json": "{}",
    "kaggle.json": "{}",
    ".docker/config.json": "{}",
    "docker.json": '{"auths": {"host": {"auth": "bWU6cHc="}}}',
    ".kube/config": "",
    "kubeconfig": "",
    "lab.kubeconfig": "",
    "cluster.yaml": KUBECONFIG,
    "sa.json": ACCOUNT,
    "credentials.json": '{"installed": {"client_id": "a", "client_secret": "b"}}',
    "adc.json": '{"type": "authorized_user", "refresh_token": "1//abc"}',
    ".config/gcloud/application_default_credentials.json": "{}",
    ".azure/msal_token_cache.json": "{}",
    ".cache/huggingface/token": "",
    ".huggingface/token": "",
    ".config/gh/hosts.yml": "",
    ".cargo/credentials.toml": "",
    ".streamlit/secrets.toml": "",
    "rclone.conf": "",
    ".vault-token": "",
    "client_secret_123.json": "{}",
}

TAKEN = {
    ".env.example": "WANDB_API_KEY=put yours here\n",
    "dev.env": "DEBUG=1\nNCCL_DEBUG=INFO\nMAX_TOKENS=4096\nKEY_FILE=/run/secrets/key\nAPI_KEY=\n",
    "env.py": "",
    "environment.yml": "name: a\n",
    ".ssh/config": "",
    ".ssh/id_rsa.pub": "",
    ".ssh/known_hosts": "",
    "id_rsa.pub": "ssh-rsa AAAA",
    "ca.pem": "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n",
    "public.pem": "-----BEGIN PUBLIC KEY-----\n",
    "test_keys.py": f'KEY = """\\\n{KEY}"""\n',
    "README.md": f"put a key here:\n\n{KEY}",
    ".npmrc": "save-exact=true\n",
    "pip.conf": "[global]\nindex-url = https://host/simple\n",
    "config.json": '{"hidden_size": 768, "token": "x"}',
    "tokenizer.json": '{"model": {"vocab": {"token": 1}}}',
    "special_tokens_map.json": '{"pad_token": "<pad>"}',
    "pod.yaml": "kind: Pod\nspec:\n  token: a\n",
    "config.yaml": "token: abc\nmodel: small\n",
    "config": "kind of config\n",
    "keys.txt": "up down left right\n",
    "token.py": "",
    "secrets.py": "",
    "vault.py": "",
    "lines.yaml": "\n" * 300_000,
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_look_like_credentials_are_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(REFUSED[name])
    (tmp_path / "train.py").touch()

    with pytest.raises(SpecError) as caught:
        snapshot.collect(tmp_path, limit_bytes=10_000_000)
    taken = snapshot.collect(tmp_path, limit_bytes=10_000_000, ship_secrets=True)

    assert caught.value.message.endswith(f": {name}")
    assert "--ship-secrets" in str(caught.value.hint)
    assert [file.path for file in taken.files] == sorted([name, "train.py"])


@pytest.mark.parametrize("name", TAKEN)
def test_files_that_only_resemble_credentials_are_taken(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(TAKEN[name])

    assert [file.path for file in snapshot.collect(tmp_path, limit_bytes=10_000_000).files] == [name]


def test_our_own_files_can_be_sent() -> None:
    snapshot.collect(HERE / "train", limit_bytes=10_000_000)
    snapshot.collect(HERE / "launcher", limit_bytes=10_000_000)


def test_a_directory_of_credentials_and_links_to_credentials_are_recognized(tmp_path: Path) -> None:
    directory = tmp_path / ".aws"
    directory.mkdir()
    (directory / "credentials").write_text("")
    with pytest.raises(SpecError, match="credentials would be sent with the run: credentials"):
        snapshot.collect(directory, limit_bytes=1000)

    work = tmp_path / "work"
    work.mkdir()
    (work / "plain").write_text("A=1")
    (work / ".env").symlink_to("plain")
    with pytest.raises(SpecError, match=r": \.env"):
        snapshot.collect(work, limit_bytes=1000)
    (work / ".env").unlink()
    (work / ".env").symlink_to("/etc/hostname")
    found = snapshot.collect(work, limit_bytes=1000, same_disk=True)
    assert [file.path for file in found.files] == [".env", "plain"], "a link alone, whose content stays where it is"


SENDING = {
    "k8s": ("k8s", "--image", "i"),
    "slurm": ("slurm", "--snapshot"),
    "ansible": ("ansible", "--inventory", "h1,"),
}


@pytest.mark.parametrize("backend", SENDING)
def test_no_backend_sends_credentials_unasked(distlaunch: Cli, backend: str) -> None:
    distlaunch.write("x.py", "")
    distlaunch.write(".env", "A=s3cr3t\n")
    distlaunch.write("deploy.pem", KEY)

    for more in (("--dry-run",), ("--render-to", "out"), ())[
        : 1 if backend == "ansible" else 3
    ]:  # it asks Ansible first
        done = distlaunch(*SENDING[backend], *more, "x.py")
        assert done.exit_code == 2, done.stderr
        assert "files that look like credentials would be sent with the run: .env, deploy.pem" in done.stderr
        assert done.stdout == ""
    assert not distlaunch.runs.exists()
    assert not (distlaunch.directory / "out").exists()

    done = distlaunch(*SENDING[backend], "--ship-secrets", "--dry-run", "--output", "json", "x.py")
    sent = done.json["result"]["sent"]["files"]
    assert sent == [
        {"path": ".env", "bytes": 9},
        {"path": "deploy.pem", "bytes": len(KEY)},
        {"path": "x.py", "bytes": 0},
    ]


@pytest.mark.parametrize(
    "words", [("local",), ("slurm",), ("ansible", "-i", "h1,", "--in-place"), ("k8s", "--image", "i", "--no-snapshot")]
)
def test_where_no_files_are_sent_none_are_refused(distlaunch: Cli, words: tuple[str, ...]) -> None:
    distlaunch.write("x.py", "")
    distlaunch.write(".env", "")

    done = distlaunch(*words, "--dry-run", "--output", "json", "x.py")

    assert (done.exit_code, done.json["result"]["sent"]["files"]) == (0, []), done.stderr


@pytest.mark.parametrize("backend", SENDING)
def test_a_dry_run_lists_what_would_be_sent(distlaunch: Cli, backend: str) -> None:
    distlaunch.write("x.py", "print(1)\n")
    distlaunch.write("data/a.bin", "x" * 12_345)
    (distlaunch.directory / "latest").symlink_to("data/a.bin")

    done = distlaunch(*SENDING[backend], "--dry-run", "--env", "A=1", "--secret", "B", "x.py", env={"B": "s3cr3t"})

    assert done.exit_code == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stderr.splitlines()]
    for line in ("A 1", "B (secret)", "data/a.bin 12 KB", "latest link to data/a.bin", "x.py 9 B"):
        assert line in lines
    assert f"3 files, 12 KB, of {distlaunch.directory}" in lines
    assert "s3cr3t" not in done.stderr + done.stdout
