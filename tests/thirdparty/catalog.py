"""The public's scripts: where each is, how it is started, and which of its output counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.thirdparty.families import ONLINE, flag_embedding, trl
from tests.thirdparty.script import NUMBER, Script

if TYPE_CHECKING:
    from collections.abc import Mapping

SDISTS: Mapping[str, str] = {
    "dmlcloud==0.5.1": "26ad61e2ce636c68188099780866cc042f188666f2fa1b6eae3c12f5bb69814b",
    "pytorch-ignite==0.5.5": "2c14de75c939a3cc06d2e7de00b1e0a261917ef9bd874dac2e69d789dfa9cc64",
}
"""Source distributions with scripts that are in no wheel, and their sha256."""

SCRIPTS = (
    Script(
        name="accelerate-script",
        package="accelerate",
        file="accelerate/test_utils/scripts/test_script.py",
        sha256="698b0b4250a6d1ac7facb381a9e55a71ab9a0b179f8e0bac3ce38d8a2c275c92",
        prints=(r"^(Training yielded.*|Model dtype.*|\*\*.*|Num processes.*|State: .*)$",),
        times=10,
        each_host_speaks=True,
    ),
    Script(
        name="accelerate-sync",
        package="accelerate",
        file="accelerate/test_utils/scripts/test_sync.py",
        sha256="05fd0921da9d94e80391aaad570e26f90a6b4cbc3d218f2c2b15e9d0908949ce",
        prints=(r"^(\*\*.*)$",),
        times=4,
        each_host_speaks=True,
    ),
    trl("sft", "text", "--max_length", "32", sha256="310f4eb5f750a8f2f1ca9ef86235455a6d1d262d1c4cf6c8261ad95090a209dc"),
    trl(
        "sft-lora",
        "text",
        "--max_length",
        "32",
        "--use_peft",
        "--lora_r",
        "4",
        saves="adapter_model",
        sha256="310f4eb5f750a8f2f1ca9ef86235455a6d1d262d1c4cf6c8261ad95090a209dc",
    ),
    trl(
        "dpo",
        "preference",
        "--max_length",
        "32",
        sha256="faf93f88277ddb87d6f47f046756527f0c59071096f81545d249eb9fc4639d36",
    ),
    trl(
        "dpo-lora",
        "preference",
        "--max_length",
        "32",
        "--use_peft",
        "--lora_r",
        "4",
        saves="adapter_model",
        sha256="faf93f88277ddb87d6f47f046756527f0c59071096f81545d249eb9fc4639d36",
    ),
    trl(
        "kto",
        "unpaired",
        "--max_length",
        "32",
        sha256="a0ec1892190afef48d66ade275f7110737ef90a588b01efa34c2f9e8ad1a77da",
    ),
    trl(
        "reward",
        "preference",
        "--max_length",
        "64",
        model="reward",
        sha256="4b2209c6ab08691928816991740f35a6d2cffbee4d28d11ab27ca17e78cddc51",
    ),
    trl("grpo", "prompt", *ONLINE, sha256="3d7de1a28d39c940951a1491b6d3b210190a3ddca6a29190f3b39a9f3be5692d"),
    trl(
        "distillation",
        "prompt",
        *("--teacher_model_name_or_path", "{inputs}/model/teacher", "--max_completion_length", "8"),
        sha256="66d9d86442182a2d994bd8022b01a442cda20d93af72fa63116370df9a20859f",
    ),
    trl("rloo", "prompt", *ONLINE, sha256="dc69ad03f599363456db7713480e5a80fabc1403e372a1244c3de441ddf1adee"),
    Script(
        name="dmlcloud-mnist",
        package="dmlcloud",
        source="dmlcloud-0.5.1",
        file="examples/mnist.py",
        sha256="c15f221e2d3746128d640b24a8b926e2f37ba654c813d06b77970e32b552367d",
        args=("--epochs", "1", "--seed", "1"),
        copies={"data": "mnist"},
        prints=(rf"(?<![\w.:])({NUMBER})%? +(?:\S+\[0m)?│",),
        times=3,
    ),
    Script(
        name="ignite-transformers",
        package="pytorch-ignite",
        packages="text",
        source="pytorch_ignite-0.5.5",
        file="examples/transformers/main.py",
        sha256="5b33f88ac8968085a66d19c432b223dae3ea97f503f93aa52fc57eaf863b2bfb",
        args=(
            *("run", "--model", "bert", "--data_dir", "cache", "--tokenizer_dir", "cache", "--output_dir", "out"),
            *(
                "--num_epochs",
                "1",
                "--max_length",
                "16",
                "--batch_size",
                "8",
                "--num_workers",
                "0",
                "--backend",
                "gloo",
            ),
        ),
        copies={"imdb": "texts/imdb", "bert": "model/bert"},
        prints=(rf"^\t(?:Accuracy|Loss): ({NUMBER})$",),
        times=4,
        each_host_speaks=True,
        heavy=True,
    ),
    Script(
        name="ignite-parallel",
        package="pytorch-ignite",
        source="pytorch_ignite-0.5.5",
        file="tests/ignite/distributed/check_idist_parallel.py",
        sha256="6085d9c66672b729c99061ac3e2d09a7511271633902b5b54d6a9a791f87a2bd",
        args=("--backend=gloo",),
        prints=(r"^(\d+ : run with config: .*)$",),
        times=2,
    ),
    Script(
        name="monai-bundle",
        package="monai",
        file="monai/bundle/__main__.py",
        sha256="462027eab68f52f3cc7d7bddd378ab0210779e4200806d657fc184df83c6e09b",
        module="monai.bundle",
        args=("run", "--config_file", "{inputs}/bundle/train.json"),
        prints=(rf"train_loss: ({NUMBER})",),
        times=8,
    ),
    flag_embedding(
        "embedder",
        "embedder.encoder_only.base",
        model="bert",
        sha256="b75030bff61436ab8cc5080a2759f048526169019837c97a1cc752e07c1030f5",
    ),
    flag_embedding(
        "reranker",
        "reranker.encoder_only.base",
        model="bert",
        sha256="67907231736f229349310ed324857ebecef8ecdf0842973e98b25e0cbaf0ff63",
    ),
    flag_embedding(
        "m3",
        "embedder.encoder_only.m3",
        model="bert",
        sha256="7203812e8e2036ee9178fa0354a478b6cf0817766d61f0e106988c0504cd6e7d",
    ),
    flag_embedding(
        "decoder-embedder",
        "embedder.decoder_only.base",
        "--use_lora",
        "False",
        model="causal",
        sha256="643063f89ea58c8762bad12a698443ff4c306907523b06b8607386c32fd32c5c",
    ),
    flag_embedding(
        "decoder-reranker",
        "reranker.decoder_only.base",
        "--use_lora",
        "False",
        model="causal",
        sha256="2a671759b8de645b73a08d8420b066c9f0e5b77330e4e8d8c78c857eb883f06c",
    ),
)
"""Their own defaults are kept if that takes only seconds."""


def two(number: int) -> tuple[Script, ...]:
    """Two of them for a run of everything: of those that take long, one at every second commit."""
    light = [script for script in SCRIPTS if not script.heavy]
    heavy = [script for script in SCRIPTS if script.heavy]
    turn, rest = divmod(number, 2)
    more = heavy[turn % len(heavy)] if rest else light[(turn + len(light) // 2) % len(light)]
    return light[turn % len(light)], more
