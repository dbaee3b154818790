"""Writes the scripts' inputs, from seeds only: tiny models, texts, images. It runs in one of their environments."""

from __future__ import annotations

import gzip
import json
import random
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WORDS = (
    *(
        "red",
        "green",
        "blue",
        "round",
        "square",
        "small",
        "large",
        "happy",
        "old",
        "new",
        "cat",
        "dog",
        "bird",
        "tree",
        "house",
    ),
    *("river", "sings", "runs", "sleeps", "grows", "falls", "burns"),
)


def sentence(chance: random.Random, words: int = 6) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(words))


def lines(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def texts(directory: Path) -> None:
    """The kinds of data that trl's trainers read, and labeled reviews."""
    chance = random.Random(1)
    prompts = [sentence(chance) for _ in range(32)]
    pairs = [
        {"prompt": prompt, "chosen": " " + sentence(chance), "rejected": " " + sentence(chance)} for prompt in prompts
    ]
    for split in ("train", "test"):
        lines(directory / "text" / f"{split}.jsonl", [{"text": f"{row['prompt']}{row['chosen']}"} for row in pairs])
        lines(directory / "preference" / f"{split}.jsonl", pairs)
        lines(directory / "prompt" / f"{split}.jsonl", [{"prompt": prompt} for prompt in prompts])
        unpaired = [
            {"prompt": row["prompt"], "completion": row[name], "label": name == "chosen"}
            for row in pairs
            for name in ("chosen", "rejected")
        ]
        lines(directory / "unpaired" / f"{split}.jsonl", unpaired)
        lines(
            directory / "imdb" / f"{split}.jsonl",
            [{"text": sentence(chance), "label": number % 2} for number in range(32)],
        )


def model(directory: Path) -> None:
    """A causal language model, a teacher, a reward model and a BERT, of two layers each, with tokenizers."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers  # type: ignore[import-not-found]
    from transformers import (  # type: ignore[import-not-found]
        BertConfig,
        BertForSequenceClassification,
        BertTokenizer,
        PreTrainedTokenizerFast,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen2ForSequenceClassification,
    )

    bytewise = Tokenizer(models.BPE())
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<pad>", "<unk>", "<s>", "</s>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise.train_from_iterator(
        WORDS, trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    )
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=bytewise, **names)
    fast.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    directory.mkdir(parents=True)
    vocabulary = directory / "words.txt"
    vocabulary.write_text("\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS)), encoding="utf-8")
    words = BertTokenizer(str(vocabulary))
    layers = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes = {**layers, "vocab_size": 300, "max_position_embeddings": 64, "pad_token_id": 0}
    ends = {"bos_token_id": 2, "eos_token_id": 3, "num_key_value_heads": 2}
    for name, kind, config, tokenizer in (
        ("causal", Qwen2ForCausalLM, Qwen2Config(**sizes, **ends), fast),
        ("teacher", Qwen2ForCausalLM, Qwen2Config(**sizes, **ends, tie_word_embeddings=True), fast),
        ("reward", Qwen2ForSequenceClassification, Qwen2Config(**sizes, **ends, num_labels=1), fast),
        ("bert", BertForSequenceClassification, BertConfig(**sizes, num_labels=1), words),
    ):
        torch.manual_seed(1)
        kind(config).save_pretrained(directory / name)
        tokenizer.save_pretrained(directory / name)


def mnist(directory: Path) -> None:
    """The files of MNIST with random images, where torchvision looks for them."""
    chance = random.Random(2)
    for name, count in (("train", 256), ("t10k", 64)):
        pictures = struct.pack(">IIII", 2051, count, 28, 28) + chance.randbytes(count * 784)
        labels = struct.pack(">II", 2049, count) + bytes(chance.randrange(10) for _ in range(count))
        for kind, data in (("images-idx3", pictures), ("labels-idx1", labels)):
            path = directory / "MNIST" / "raw" / f"{name}-{kind}-ubyte"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(data, mtime=0))


def pairs(directory: Path) -> None:
    """Queries with relevant and irrelevant passages."""
    chance = random.Random(4)
    rows = [
        {"query": sentence(chance), "pos": [sentence(chance)], "neg": [sentence(chance), sentence(chance)]}
        for _ in range(32)
    ]
    lines(directory / "pairs.jsonl", rows)


def bundle(directory: Path) -> None:
    """A MONAI bundle: a small network that segments random images."""
    seeded = "generator=torch.Generator().manual_seed(number)"
    picture = f"{{'image': torch.rand(1, 32, 32, {seeded}), 'label': torch.randint(0, 2, (1, 32, 32), {seeded})}}"
    network = {"_target_": "BasicUNet", "spatial_dims": 2, "in_channels": 1, "out_channels": 2, "features": [4] * 6}
    loss = "$monai.handlers.from_engine(['loss'], first=True)"
    settings = {
        "imports": ["$import torch", "$import torch.distributed as dist", "$import monai"],
        "initialize": ["$dist.init_process_group('gloo')", "$monai.utils.set_determinism(seed=1)"],
        "network": {"_target_": "torch.nn.parallel.DistributedDataParallel", "module": network},
        "dataset": {"_target_": "Dataset", "data": f"$[{picture} for number in range(16)]"},
        "sampler": {"_target_": "DistributedSampler", "dataset": "@dataset", "even_divisible": True, "shuffle": True},
        "loader": {
            "_target_": "DataLoader",
            "dataset": "@dataset",
            "batch_size": 4,
            "sampler": "@sampler",
            "num_workers": 0,
        },
        "optimizer": {"_target_": "torch.optim.SGD", "params": "$@network.parameters()", "lr": 0.1},
        "trainer": {
            "_target_": "SupervisedTrainer",
            "max_epochs": 2,
            "device": "$torch.device('cpu')",
            "network": "@network",
            "train_data_loader": "@loader",
            "optimizer": "@optimizer",
            "inferer": {"_target_": "SimpleInferer"},
            "loss_function": {"_target_": "DiceLoss", "to_onehot_y": True, "softmax": True},
            "train_handlers": [{"_target_": "StatsHandler", "tag_name": "train_loss", "output_transform": loss}],
        },
        "run": ["$@trainer.run()"],
        "finalize": ["$dist.destroy_process_group()"],
    }
    directory.mkdir(parents=True)
    (directory / "train.json").write_text(json.dumps(settings), encoding="utf-8")


MAKERS = (texts, model, mnist, pairs, bundle)

if __name__ == "__main__":
    for make in MAKERS:
        make(Path(sys.argv[1]) / make.__name__)
