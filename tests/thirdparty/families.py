"""Scripts of one package that are started alike: the trainers of trl and of FlagEmbedding."""

from __future__ import annotations

from tests.thirdparty.script import NUMBER, Script


def trl(name: str, data: str, *args: str, sha256: str, model: str = "causal", saves: str = "model") -> Script:
    """One of trl's trainers."""
    common = (
        *("--model_name_or_path", f"{{inputs}}/model/{model}", "--dataset_name", f"{{inputs}}/texts/{data}"),
        *("--output_dir", "out", "--max_steps", "3", "--per_device_train_batch_size", "2", "--logging_steps", "1"),
        *(
            "--use_cpu",
            "--report_to",
            "none",
            "--save_strategy",
            "no",
            "--bf16",
            "false",
            "--gradient_checkpointing",
            "false",
        ),
    )
    return Script(
        name=f"trl-{name}",
        package="trl",
        packages="text",
        file=f"trl/scripts/{name.partition('-')[0]}.py",
        sha256=sha256,
        args=(*common, *args),
        prints=(rf"'loss': '({NUMBER})', 'grad_norm': '({NUMBER})'",),
        times=3,
        saves=(f"out/{saves}.safetensors",),
        heavy=True,
    )


ONLINE = (
    *("--reward_model_name_or_path", "{inputs}/model/reward", "--num_generations", "2", "--max_completion_length", "8"),
    *("--beta", "0.1"),
)
"""The options of trainers that generate their own texts."""


def flag_embedding(name: str, module: str, *args: str, model: str, sha256: str) -> Script:
    """One of FlagEmbedding's trainers."""
    common = (
        *(
            "--model_name_or_path",
            f"{{inputs}}/model/{model}",
            "--train_data",
            "{inputs}/pairs/pairs.jsonl",
            "--cache_dir",
            "cache",
        ),
        *(
            "--output_dir",
            "out",
            "--max_steps",
            "3",
            "--per_device_train_batch_size",
            "2",
            "--logging_steps",
            "1",
            "--use_cpu",
        ),
        *("--report_to", "none", "--save_strategy", "no", "--query_max_len", "16", "--passage_max_len", "16"),
        *("--train_group_size", "2", "--ddp_find_unused_parameters", "True"),
    )
    return Script(
        name=f"flagembedding-{name}",
        package="flagembedding",
        packages="search",
        file=f"FlagEmbedding/finetune/{module.replace('.', '/')}/__main__.py",
        sha256=sha256,
        module=f"FlagEmbedding.finetune.{module}",
        args=(*common, *args),
        prints=(rf"'loss': '({NUMBER})', 'grad_norm': '({NUMBER})'",),
        times=3,
        saves=("out/model.safetensors",),
        heavy=True,
    )
