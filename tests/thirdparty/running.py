"""One of the public's scripts under torchrun and under distlaunch: what its workers print and save."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.command import ROOT
from tests.torchrun.behaviour import free_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from tests.thirdparty.environment import Environment
    from tests.thirdparty.script import Script

WORKERS = 2
LIMIT_S = 600
MARKED = re.compile(r"^\[\d+:(\d+)\] (.*)$", re.MULTILINE)
"""A line of one of several ranks, as `--log-ranks all` shows it."""

ENV: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "ACCELERATE_USE_CPU": "true",
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "MPLBACKEND": "agg",
    "TOKENIZERS_PARALLELISM": "false",
}
"""The same everywhere. Nothing is downloaded while a script runs."""


@dataclass(frozen=True, slots=True)
class Digits:
    """The part of a run's output that counts."""

    printed: dict[str, list[str]]
    """By rank."""

    saved: dict[str, object] = field(default_factory=dict)
    """The digest of each tensor, by pattern and number of the file."""

    def to_json(self) -> str:
        """Serialize it for another process."""
        return json.dumps({"printed": self.printed, "saved": self.saved})


def variables(script: Script, environment: Environment, directory: Path) -> dict[str, str]:
    """Variables for the script, whose home is below its working directory."""
    own = {name: value.format(inputs=environment.inputs) for name, value in script.env.items()}
    return {**ENV, "HOME": str(directory / "home"), **own}


def words(script: Script, environment: Environment) -> list[str]:
    """The script and its arguments, as both launchers accept them."""
    args = [word.format(inputs=environment.inputs) for word in script.args]
    return ["-m", script.module, *args] if script.module else [str(path(script, environment)), *args]


def path(script: Script, environment: Environment) -> Path:
    """Where its file is."""
    return (environment.sources / script.source if script.source else environment.site) / script.file


def check(script: Script, environment: Environment) -> None:
    """Fail unless the script is the one that was published."""
    found = hashlib.sha256(path(script, environment).read_bytes()).hexdigest()
    assert found == script.sha256, f"{script.file} of {script.package} is another one: {found}"


def prepare(script: Script, environment: Environment, directory: Path) -> Path:
    """Make a working directory."""
    (directory / "home").mkdir(parents=True)
    for name, source in script.copies.items():
        shutil.copytree(environment.inputs / source, directory / name)
    return directory


def torchrun(
    script: Script, environment: Environment, directory: Path, launcher: Sequence[str] = (), nodes: int = 1
) -> Digits:
    """The results under the torchrun of torch, or under a launcher in its place; it is started once per node."""
    check(script, environment)
    prepare(script, environment, directory)
    logs = [directory.with_name(f"{directory.name}-logs-{node}") for node in range(nodes)]
    env = {key: value for key, value in os.environ.items() if not key.startswith("DISTLAUNCH_")}
    env |= {**variables(script, environment, directory), "PATH": f"{environment.python.parent}:{env['PATH']}"}
    env |= {"PYTHONPATH": str(ROOT)} if launcher else {}
    shape = [f"--nproc-per-node={WORKERS // nodes}", "--redirects=3"]
    shape += [f"--nnodes={nodes}", f"--master-port={free_port()}"] * (nodes > 1)

    def start(node: int) -> subprocess.CompletedProcess[str]:
        options = (*shape, f"--node-rank={node}", f"--log-dir={logs[node]}")
        argv = (*(launcher or (str(environment.torchrun),)), *options, *words(script, environment))
        return subprocess.run(
            argv, cwd=directory, env=env, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL
        )

    with ThreadPoolExecutor(nodes) as pool:
        done = list(pool.map(start, range(nodes)))
    text = {}
    for rank in range(WORKERS):
        node, local = divmod(rank, WORKERS // nodes)
        files = sorted(logs[node].glob(f"*/attempt_0/{local}/std*.log"))
        text[str(rank)] = "\n".join(file.read_text("utf-8", errors="replace") for file in files)
    output = "\n".join((*(each.stderr[-2000:] for each in done), *(part[-3000:] for part in text.values())))
    assert not any(each.returncode for each in done), output
    return collect(script, directory, text)


def shown(stdout: str, stderr: str) -> dict[str, str]:
    """The lines of each rank in the output of distlaunch."""
    lines: dict[str, list[str]] = {str(rank): [] for rank in range(WORKERS)}
    for rank, line in (*MARKED.findall(stderr), *MARKED.findall(stdout)):
        lines[rank].append(line)
    return {rank: "\n".join(found) for rank, found in lines.items()}


def collect(script: Script, directory: Path, text: Mapping[str, str]) -> Digits:
    """What counts; it is an error if there is too little of it."""
    printed = {rank: list(matches(script.prints, part)) for rank, part in text.items()}
    number = sum(map(len, printed.values()))
    assert number >= script.times, (
        f"{script.name} has printed {number} of what counts, not {script.times}: {dict(text)}"
    )
    return Digits(printed, saved(script, directory))


def matches(patterns: Iterable[str], text: str) -> list[str]:
    """The parts of a worker's lines that count, in the order of the patterns."""
    found = [re.findall(pattern, text, re.MULTILINE) for pattern in patterns]
    return [match if isinstance(match, str) else " ".join(match) for part in found for match in part]


def saved(script: Script, directory: Path) -> dict[str, object]:
    """The digests of all tensors in the script's files, by pattern."""
    found: dict[str, object] = {}
    for pattern in script.saves:
        files = sorted(directory.glob(pattern))
        assert files, f"{script.name} has saved no {pattern}: {sorted(map(str, directory.rglob('*')))[:50]}"
        found |= {f"{pattern} {number}": tensors(file) for number, file in enumerate(files)}
    return found


def tensors(path: Path) -> dict[str, str]:
    """The digest of each tensor of a safetensors file, which has a length, a JSON table and the bytes."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    table = json.loads(data[8:start])
    table.pop("__metadata__", None)
    found = {}
    for name, about in table.items():
        first, last = about["data_offsets"]
        kind = str((about["dtype"], about["shape"])).encode()
        found[name] = hashlib.sha256(kind + data[start + first : start + last]).hexdigest()[:16]
    return found
