"""The documents that `distlaunch k8s --dry-run` prints, checked against the published schemas."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import yaml

if TYPE_CHECKING:
    from tests.command import Cli

VERSIONS = ("1.31", kubernetes_validate.latest_version())
CUSTOM = ("JobSet", "TrainJob", "TrainingRuntime", "PyTorchJob", "MPIJob", "TFJob")


def documents(text: str) -> list[dict[str, Any]]:
    """What is in YAML, read by libyaml: the parser in Python takes seconds for a megabyte."""
    return list(yaml.load_all(text, yaml.CSafeLoader))


def rendered(distlaunch: Cli, *options: str, **more: Any) -> list[dict[str, Any]]:
    """The documents that are printed, each checked against the schemas."""
    distlaunch.write("x.py", "print(1)\n")
    done = distlaunch("k8s", "--dry-run", "--image", "registry.test/torch:1", *options, "x.py", "--lr", "1", **more)
    assert done.exit_code == 0, done.stderr
    found = documents(done.stdout)
    for item in found:
        for version in VERSIONS if item["kind"] not in CUSTOM else ():
            kubernetes_validate.validate(item, version, strict=True)
    return found


def one(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (item,) = [item for item in found if item["kind"] == kind]
    return item


def spec_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(found[0]["data"]["spec.json"])
    return value
