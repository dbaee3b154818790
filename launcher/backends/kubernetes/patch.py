"""`--patch FILE`: YAML documents, each merged into all objects of its kind, as `kubectl patch` merges them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from launcher.errors import BackendUnavailableError, SpecError
from launcher.payload import credentials
from launcher.system import install, trust

if TYPE_CHECKING:
    from collections.abc import Iterable

    from launcher.backends.kubernetes.objects import Manifest

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "replicatedJobs": "name",
}
"""Lists whose items are merged by a key, as Kubernetes itself does, and JobSet; other lists are replaced."""

_OURS = ("name", "namespace")


def read(paths: Iterable[str], *, ship_secrets: bool) -> list[tuple[str, Manifest]]:
    """The documents of all files, each with its file; variables that hold credentials are refused."""
    try:
        import yaml
    except ImportError as error:
        raise BackendUnavailableError("PyYAML is not installed", hint=install.command("k8s")) from error

    found = []
    for path in paths:
        try:
            documents = list(yaml.safe_load_all(trust.read_text("patch", path)))  # it can set what a pod runs
        except OSError as error:
            raise SpecError(f"patch {path!r} cannot be read: {error.strerror}") from error
        except (yaml.YAMLError, RecursionError) as error:
            raise SpecError(f"patch {path!r} is not YAML: {' '.join(str(error).split())}") from error
        for document in documents:
            if document is None:
                continue
            if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
                raise SpecError(
                    f"patch {path!r} does not say of which kind", hint="start it with a line like kind: Job"
                )
            if not ship_secrets:
                credentials.check_manifest(f"patch {path!r}", document)
            found.append((path, document))
    return found


def apply(objects: list[Manifest], patches: Iterable[tuple[str, Manifest]]) -> list[Manifest]:
    """The objects with all patches merged; `SpecError` for a patch that fits none, or removes what is ours."""
    for path, patch in patches:
        kinds = {item["kind"] for item in objects}
        if patch["kind"] not in kinds:
            raise SpecError(
                f"patch {path!r}: there is no {patch['kind']} in this run", hint="kinds: " + ", ".join(sorted(kinds))
            )
        objects = [_patched(item, patch, path) if item["kind"] == patch["kind"] else item for item in objects]
    return objects


def _patched(item: Manifest, patch: Manifest, path: str) -> Manifest:
    found: Manifest = merged(item, {key: value for key, value in patch.items() if key not in ("kind", "apiVersion")})
    meta = found.get("metadata")
    labels = meta.get("labels") if isinstance(meta, dict) else None
    kept = isinstance(meta, dict) and all(meta.get(key) == item["metadata"].get(key) for key in _OURS)
    if not kept or not isinstance(labels, dict) or {**labels, **item["metadata"]["labels"]} != labels:
        raise SpecError(
            f"patch {path!r} changes the name, namespace or labels of the {item['kind']}",
            hint="the run is found by them; --namespace and --label set or add them",
        )
    return found


def merged(value: Any, patch: Any, key: str = "") -> Any:
    """The value with the patch merged in: maps key by key, null removes, lists of named items by their names."""
    if isinstance(value, dict) and isinstance(patch, dict):
        found = {name: item for name, item in value.items() if patch.get(name, item) is not None}
        for name, item in patch.items():
            if item is not None:
                found[name] = merged(value.get(name), item, name)
        return found
    name = _KEYS.get(key)
    if name and isinstance(value, list) and isinstance(patch, list):
        known = {item.get(name): item for item in value if isinstance(item, dict)}
        for item in patch:
            if isinstance(item, dict):
                known[item.get(name)] = merged(known.get(item.get(name)), item)
        return list(known.values())
    return copy.deepcopy(patch)
