"""Converts option texts to Kubernetes' terms: quantities, labels, taints, volumes, users."""

from __future__ import annotations

import os
import re
from typing import Any

from launcher.errors import SpecError
from launcher.spec import check_secrets

_QUANTITY = re.compile(r"(\d+(\.\d+)?|\.\d+)([eE][+-]?\d+|n|u|m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?\Z", re.ASCII)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?\Z", re.ASCII)
_LABEL_KEY = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z", re.ASCII
)
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z", re.ASCII)
_DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z", re.ASCII)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def quantity(text: str, what: str) -> str:
    """The text, if Kubernetes reads it as a quantity."""
    if not _QUANTITY.match(text):
        raise SpecError(f"{what} {text!r} is not a quantity", hint="write 2, 500m, 64Gi or 500M, without blanks")
    return text


def resource_pairs(texts: tuple[str, ...]) -> dict[str, str]:
    """`NAME=N` texts as a mapping."""
    found: dict[str, str] = {}
    for text in texts:
        name, given, value = text.partition("=")
        if not given or not _LABEL_KEY.match(name):
            raise SpecError(f"resource {text!r} is not NAME=N", hint="write --resource rdma/hca=1")
        found[name] = quantity(value, f"resource {name}")
    return found


def names(text: str) -> list[str]:
    """`N1,N2` as a list."""
    return [name.strip() for name in text.split(",") if name.strip()]


def pairs(texts: tuple[str, ...], what: str, *, values_are_labels: bool = True) -> dict[str, str]:
    """`KEY=VALUE` texts as a mapping, checked as labels."""
    found: dict[str, str] = {}
    for text in texts:
        key, given, value = text.partition("=")
        if not given or not _LABEL_KEY.match(key):
            raise SpecError(f"{what} {text!r} is not KEY=VALUE", hint=f"write --{what} example.com/key=value")
        if values_are_labels and not _LABEL_VALUE.match(value):
            raise SpecError(
                f"{what} {text!r}: {value!r} is not a label value",
                hint="at most 63 letters, digits, '-', '_' and '.' between them",
            )
        found[key] = value
    return found


def tolerations(texts: tuple[str, ...]) -> list[dict[str, str]]:
    """`KEY[=VALUE][:EFFECT]`, as kubectl taint writes taints."""
    found = []
    for text in texts:
        rest, _, effect = text.partition(":")
        key, valued, value = rest.partition("=")
        if not _LABEL_KEY.match(key) or (effect and effect not in _EFFECTS):
            raise SpecError(f"toleration {text!r} is not KEY[=VALUE][:EFFECT]", hint="effects: " + ", ".join(_EFFECTS))
        found.append(
            {"key": key, "operator": "Equal" if valued else "Exists"}
            | ({"value": value} if valued else {})
            | ({"effect": effect} if effect else {})
        )
    return found


def secret_refs(texts: tuple[str, ...]) -> list[dict[str, Any]]:
    """Variables whose values come from existing Secrets."""
    found = []
    for text in texts:
        name, _, source = text.partition("=")
        secret, _, key = source.partition(":")
        if not _ENV_NAME.match(name) or not _DNS_NAME.match(secret) or not key:
            raise SpecError(
                f"secret-ref {text!r} is not VARIABLE=SECRET:KEY", hint="write --secret-ref HF_TOKEN=hub:token"
            )
        check_secrets([name])
        found.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
    return found


def volumes(texts: tuple[str, ...]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The volumes, and their mounts in the container."""
    found, mounts = [], []
    for number, text in enumerate(texts):
        readonly = text.endswith(":ro")
        kind, *rest = text.removesuffix(":ro").split(":")
        source = _volume_source(kind.lower(), rest)
        if source is None or not rest[-1].startswith("/"):
            raise SpecError(
                f"volume {text!r} is not understood",
                hint="pvc:CLAIM:PATH, hostpath:SOURCE:PATH, nfs:SERVER:SOURCE:PATH or emptydir:[SIZE]:PATH, "
                "each with :ro",
            )
        name = f"volume-{number}"
        found.append({"name": name, **source})
        mounts.append({"name": name, "mountPath": rest[-1]} | ({"readOnly": True} if readonly else {}))
    return found, mounts


def lasting(texts: tuple[str, ...]) -> list[str]:
    """Where the volumes are mounted that can be written, and outlive their pods."""
    pairs = zip(*volumes(texts), strict=True)
    return [mount["mountPath"] for volume, mount in pairs if not ("emptyDir" in volume or mount.get("readOnly"))]


def keeps(texts: tuple[str, ...], path: str) -> bool:
    """Whether what is written at a path is on such a volume: of those that are mounted above it, the lowest counts."""
    mounts = [mount["mountPath"] for mount in volumes(texts)[1]]
    above = [mount for mount in mounts if f"{os.path.normpath(path)}/".startswith(f"{os.path.normpath(mount)}/")]
    return max(above, key=len, default=None) in lasting(texts)


def _volume_source(kind: str, rest: list[str]) -> dict[str, Any] | None:
    if kind == "pvc" and len(rest) == 2 and _DNS_NAME.match(rest[0]):
        return {"persistentVolumeClaim": {"claimName": rest[0]}}
    if kind == "hostpath" and len(rest) == 2 and rest[0].startswith("/"):
        return {"hostPath": {"path": rest[0]}}
    if kind == "nfs" and len(rest) == 3 and rest[0] and rest[1].startswith("/"):
        return {"nfs": {"server": rest[0], "path": rest[1]}}
    if kind == "emptydir" and len(rest) == 2:
        return {"emptyDir": {"sizeLimit": quantity(rest[0], "volume size")} if rest[0] else {}}
    return None


def user(text: str) -> dict[str, Any]:
    """`UID[:GID]`, or the image's own user, as a pod's security context."""
    if text == "image":
        return {"runAsNonRoot": True}
    match = re.fullmatch(r"(\d{1,10})(?::(\d{1,10}))?", text, re.ASCII)
    if match is None:
        raise SpecError(f"run-as {text!r} is not UID[:GID], nor image", hint="write --run-as 1000:1000")
    uid = int(match[1])
    gid = int(match[2]) if match[2] else uid
    return {"runAsUser": uid, "runAsGroup": gid, "fsGroup": gid, "runAsNonRoot": uid != 0}


def half(text: str) -> str:
    """Half of a quantity of bytes."""
    count = amount(text)
    mebibytes = int(count / 2 / 2**20)
    return f"{mebibytes}Mi" if mebibytes else str(max(1, int(count / 2)))


def amount(text: str) -> float:
    """A quantity as a number."""
    match = _QUANTITY.match(text)
    assert match is not None
    unit = match[3] or ""
    if unit[:1] in ("e", "E") and len(unit) > 1:
        return float(text)
    if unit.endswith("i"):
        return float(match[1]) * 1024.0 ** (1 + "KMGTPE".index(unit[0]))
    return float(match[1]) * (
        {"n": 1e-9, "u": 1e-6, "m": 0.001, "": 1}.get(unit) or 1000.0 ** (1 + "kMGTPE".index(unit))
    )


def label_key(text: str, what: str) -> str:
    """The text, if a label can have this name."""
    if not _LABEL_KEY.match(text):
        raise SpecError(f"{what} {text!r} is not a label name", hint="for example topology.kubernetes.io/zone")
    return text


def printable(text: str, what: str) -> None:
    """Refuse a text that cannot be printed."""
    if not text.isprintable():  # it appears in commands that are printed
        raise SpecError(f"{what} {text!r} has characters that cannot be printed")


def dns_name(text: str, what: str, *, label: bool = False) -> str:
    """The text, if an object can have this name."""
    if not (_DNS_LABEL if label else _DNS_NAME).match(text):
        raise SpecError(
            f"{what} {text!r} is not a valid Kubernetes name", hint="lower-case letters, digits and dashes, at most 63"
        )
    return text
