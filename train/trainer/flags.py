"""Build a `Config` from the command line and a file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Optional, Sequence, get_args, get_type_hints

from trainer import datasets
from trainer.config import GLOBAL_BATCH, Config, flag
from trainer.errors import InputError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


class _Parser(argparse.ArgumentParser):
    """Prints help on rank 0 only, and raises `InputError` instead of exiting on an error."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; --help lists all flags")

    def print_help(self, file: Optional[SupportsWrite[str]] = None) -> None:
        if os.environ.get("RANK", "0") == "0":
            super().print_help(file)


def parse(argv: Sequence[str], world_size: int) -> Config:
    """The configuration that the command line `argv` asks for; raises `InputError`.

    Flags override the `--config` file, which overrides the defaults. `--help`, `--list-models` and `--print-config` end
    the process.
    """
    given = vars(_parser().parse_args(argv))
    file, show, list_models = (
        given.pop("config", None),
        given.pop("print_config", False),
        given.pop("list_models", False),
    )
    if list_models:
        from trainer.model import list_models as names  # imports torchvision, which takes 1.5 s

        _say_and_end("\n".join(names()))
    values = {**(_read_file(file) if file else {}), **given}
    config = Config(**_resolved(dict(values), world_size))
    if show:
        origin = {
            name: "flag" if name in given else "file" if name in values else "default" for name in config.to_json()
        }
        _say_and_end(
            "\n".join(f"{name} = {json.dumps(value)}  # {origin[name]}" for name, value in config.to_json().items())
        )
    return config


def _resolved(values: dict[str, Any], world_size: int) -> dict[str, Any]:
    """`values` with the defaults that depend on other settings."""
    data = values.get("data", "digits")
    found = datasets.find(data, values.get("reader", "index"))
    if values.get("model", "auto") == "auto":
        values["model"] = "small" if found.small else "resnet50"
    if values.get("image_shape") is None:
        small = found.small if values["model"] == "small" else None
        values["image_shape"] = small or (3, found.side, found.side)
    if values.get("batch_size") is None:
        values["batch_size"] = max(1, GLOBAL_BATCH // world_size)
    if values.get("epochs") is None:
        values["epochs"] = found.epochs
    if values.get("metrics") is None and values.get("out") is not None:
        values["metrics"] = values["out"] / "metrics.jsonl"
    if values.get("init") is None:
        values["init"] = "file" if values.get("weights") else "seed"
    if data.startswith(("/", ".", "~")) and not data.startswith("pipe:"):
        values["data"] = os.path.expanduser(data)
    return values


def _parser() -> argparse.ArgumentParser:
    """A parser with a flag for each field, in the fields' order; its result holds only the flags that were given."""
    parser = _Parser(
        prog="train.py", description="Train an image classifier under torchrun, or alone.", allow_abbrev=False
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", default=argparse.SUPPRESS, help="settings, as TOML or YAML"
    )
    parser.add_argument(
        "--print-config", action="store_true", default=argparse.SUPPRESS, help="print all settings, and stop"
    )
    parser.add_argument(
        "--list-models",
        action="store_true",
        default=argparse.SUPPRESS,
        help="print torchvision's names for --model, and stop",
    )
    for one in fields(Config):
        kind = _kind(one.name)
        text = (
            one.metadata["help"]
            .replace("(%(default)s)", f"({one.default})")
            .replace("DATASETS", ", ".join(datasets.NAMES))
        )
        common: dict[str, Any] = {"dest": one.name, "default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
        if kind is bool:
            parser.add_argument(flag(one.name), action=argparse.BooleanOptionalAction, **common)
        else:
            metavar = one.metadata["metavar"] if one.metadata["choices"] is None else None
            convert = _shape if kind is tuple else kind
            parser.add_argument(
                flag(one.name), type=convert, choices=one.metadata["choices"], metavar=metavar, **common
            )
    return parser


def _kind(name: str) -> Any:
    """The type of a field, without `Optional`."""
    hint = get_type_hints(Config)[name]
    inner = [one for one in get_args(hint) if one is not type(None)]
    chosen = inner[0] if type(None) in get_args(hint) else hint
    return getattr(chosen, "__origin__", chosen)


def _shape(text: str) -> tuple[int, int, int]:
    """Parse `3x224x224`."""
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 3x224x224")
    channels, height, width = map(int, parts)
    return channels, height, width


def _read_file(path: Path) -> dict[str, Any]:
    """The settings in a TOML or YAML file, checked like flags; raises `InputError`."""
    if path.exists() and not path.is_file():
        raise InputError(f"--config {path}: this is no file")  # every rank would block on a pipe
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"--config {path}: {error.strerror}") from error
    try:
        table = _toml(text) if path.suffix == ".toml" else _yaml(text)
    except ValueError as error:
        raise InputError(f"--config {path}: {error}") from error
    if not isinstance(table, dict):
        raise InputError(f"--config {path}: not a table of settings")
    argv, words = [], [flag(one.name) for one in fields(Config) if "on" in (one.metadata["choices"] or ())]
    for key, value in table.items():
        name = flag(str(key))
        if isinstance(value, bool) and name in words:
            argv.append(f"{name}={'on' if value else 'off'}")  # YAML's words for true and false
        elif isinstance(value, bool):
            argv.append(name if value else "--no-" + name[2:])
        elif value is not None:
            argv.append(f"{name}={'x'.join(map(str, value)) if isinstance(value, list) else value}")
    try:
        return vars(_parser().parse_args(argv))
    except InputError as error:
        raise InputError(f"--config {path}: {error}") from error


def _toml(text: str) -> Any:
    try:
        import tomllib  # novermin  # Python 3.11
    except ImportError:
        try:
            import tomli as tomllib  # type: ignore[no-redef]
        except ImportError as error:
            raise InputError("--config with TOML needs Python 3.11 or tomli: pip install tomli") from error
    return tomllib.loads(text)


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise InputError("--config with YAML needs PyYAML: pip install pyyaml") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(str(error).replace("\n", " ")) from error


def _say_and_end(text: str) -> NoReturn:
    if os.environ.get("RANK", "0") == "0":
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    raise SystemExit(0)
