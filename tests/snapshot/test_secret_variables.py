"""Keys, tokens and passwords in variables, setup lines and patches are sent only on request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from launcher.payload import credentials

if TYPE_CHECKING:
    from tests.command import Cli

KEYS = [
    ("WANDB_API_KEY", "abc", True),
    ("HF_TOKEN", "abc", True),
    ("PGPASSWORD", "pw", True),
    ("DB_PASSWORD", "pw", True),
    ("MYSQL_PWD", "pw", True),
    ("AWS_SECRET_ACCESS_KEY", "abc/+", True),
    ("CLIENT_SECRET", "abc", True),
    ("OPENAI_KEY", "a1b2c3d4e5f6a7b8c9d0", True),
    ("X", "hf_" + "a" * 34, True),
    ("PROXY", "http://me:pw@proxy:3128", True),
    ("X", "ghp_" + "0" * 36, True),
    ("wandb_api_key", "abc", True),
    ("WANDB_API_KEY", "", False),
    ("API_KEY", "/run/secrets/key", False),
    ("GOOGLE_APPLICATION_CREDENTIALS", "~/key.json", False),
    ("TOKENIZERS_PARALLELISM", "false", False),
    ("MAX_TOKENS", "4096", False),
    ("PAD_TOKEN", "<pad>", False),
    ("EOS_TOKEN", "</s>", False),
    ("USE_TOKEN", "true", False),
    ("SORT_KEY", "name", False),
    ("MONKEY", "banana", False),
    ("PWD", "/home/me", False),
    ("NCCL_IB_HCA", "mlx5_0,mlx5_1", False),
    ("URL", "https://host:8080/a", False),
    ("PASSWORDLESS", "ssh", False),
]


@pytest.mark.parametrize(("name", "value", "secret"), KEYS)
def test_variables_with_keys_are_distinguished_from_others(name: str, value: str, secret: bool) -> None:
    assert credentials.is_secret(name, value) is secret


@pytest.mark.parametrize("words", [("local",), ("k8s", "--image", "i"), ("slurm",), ("ansible", "-i", "h1,")])
def test_a_key_in_a_variable_is_refused_with_the_advice_to_use_a_secret(
    distlaunch: Cli, words: tuple[str, ...]
) -> None:
    distlaunch.write("x.py", "")

    done = distlaunch(*words, "--dry-run", "-e", "WANDB_API_KEY=s3cr3t", "x.py")
    good = distlaunch(*words, "--dry-run", "--secret", "WANDB_API_KEY", "x.py", env={"WANDB_API_KEY": "s3cr3t"})
    asked = distlaunch("local", "--dry-run", "--ship-secrets", "-e", "WANDB_API_KEY=s3cr3t", "x.py")

    assert done.exit_code == 2
    assert "--env WANDB_API_KEY: its value looks like a key" in done.stderr
    assert "export WANDB_API_KEY here, then --secret WANDB_API_KEY in place of --env WANDB_API_KEY" in done.stderr
    assert "s3cr3t" not in done.stderr + done.stdout + good.stderr + good.stdout
    assert (good.exit_code, asked.exit_code) == (0, 0), good.stderr + asked.stderr


def test_a_key_in_the_settings_or_forwarded_from_here_is_reported_with_its_place(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    path = distlaunch.write("distlaunch.toml", '[defaults]\nenv = ["A=1", "HF_TOKEN=hf_abc"]\n')

    for words in (("local", "x.py"), ("config",)):
        done = distlaunch(*words)
        assert done.exit_code == 2
        assert f"{path}:2: env HF_TOKEN: its value looks like a key" in done.stderr
        assert "hf_abc" not in done.stderr + done.stdout
    path.write_text('[defaults]\nenv = ["HF_TOKEN"]\n')
    done = distlaunch("local", "x.py", env={"HF_TOKEN": "hf_abc"})
    assert f"{path}:2: env HF_TOKEN: its value" in done.stderr
    assert "hint: --secret HF_TOKEN in place of" in done.stderr
    path.write_text('[defaults]\nship_secrets = true\nenv = ["HF_TOKEN=hf_abc"]\n')
    assert distlaunch("local", "x.py").exit_code == 0
    shown = distlaunch("config")
    assert "HF_TOKEN=..." in shown.stdout
    assert "hf_abc" not in shown.stdout + distlaunch("config", "--output", "json").stdout
    path.unlink()
    assert (
        "DISTLAUNCH_ENV: env PGPASSWORD: its"
        in distlaunch("local", "x.py", env={"DISTLAUNCH_ENV": "PGPASSWORD=x"}).stderr
    )


def test_a_key_in_a_setup_line_or_a_patch_is_refused_too(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    distlaunch.write("env.sh", "module load cuda\n  export HF_TOKEN='s3cr3t'\n")
    env = [{"name": "A", "value": "1"}, {"name": "WANDB_API_KEY", "value": "s3cr3t"}]
    patch = {"kind": "Job", "spec": {"template": {"spec": {"containers": [{"name": "node", "env": env}]}}}}
    distlaunch.write("patch.yaml", json.dumps(patch))

    for words, name in (
        (("slurm", "--setup", "export HF_TOKEN=s3cr3t"), "setup sets HF_TOKEN"),
        (("slurm", "--setup", "@env.sh"), "setup sets HF_TOKEN"),
        (("k8s", "--image", "i", "--patch", "patch.yaml", "--no-snapshot"), "patch 'patch.yaml' sets WANDB_API_KEY"),
    ):
        done = distlaunch(*words, "--dry-run", "x.py")
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"{name}, whose value looks like a key" in done.stderr
        assert "s3cr3t" not in done.stderr
        assert distlaunch(*words, "--dry-run", "--ship-secrets", "x.py").exit_code == 0


def test_a_project_file_that_ships_secrets_is_reported(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    distlaunch.write("distlaunch.toml", "[defaults]\nship_secrets = true\n")

    assert "distlaunch.toml sets ship_secrets" in distlaunch("local", "--dry-run", "x.py").stderr
