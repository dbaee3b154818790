"""Finds the kubeconfigs and merges them: contexts, credentials, login plugins."""

from __future__ import annotations

import os
from typing import Any

from launcher.backends.kubernetes import login
from launcher.errors import SpecError
from launcher.system import input_file, trust

_FILES = {"certificate-authority", "client-certificate", "client-key", "tokenFile"}


def listed(text: str) -> list[str]:
    """The absolute paths of a list of files, which may be a single file."""
    return [os.path.abspath(path) for path in ([text] if os.path.exists(text) else text.split(os.pathsep)) if path]


def find(setting: str) -> list[str]:
    """The absolute paths of the kubeconfigs to read: of a list, as KUBECONFIG may be one, the files that exist."""
    text = setting or os.environ.get("KUBECONFIG", "") or os.path.expanduser("~/.kube/config")
    found = [path for path in listed(text) if os.path.exists(path)]
    if setting and not found:
        raise SpecError(f"kubeconfig {setting!r} does not exist")
    for path in found:
        trust.require("kubeconfig", path)  # it can name programs to run
        try:
            input_file.check(path)
        except OSError as error:
            raise SpecError(f"kubeconfig {path!r} cannot be read: {error.strerror}") from error
    return [path for path in found if os.path.getsize(path)] or found


def load(library: Any, paths: list[str], context: str, configuration: Any) -> tuple[str, str]:
    """Load the context; returns its namespace and name. Raises `LaunchError` for any fault of the files."""
    where = f"kubeconfig {os.pathsep.join(paths)!r}"
    try:
        merged = _merged(library, paths)
        contexts = {item.value["name"]: item.value.get("context") or {} for item in merged.value["contexts"]}
    except Exception as error:
        raise SpecError(f"{where} cannot be used: {login.plain(error)}") from error
    chosen = context or merged.value["current-context"]
    if not chosen:
        raise SpecError(f"{where} has no current context", hint="give --context NAME")
    if chosen not in contexts:
        raise SpecError(f"no context {chosen!r} in {where}", hint="known: " + ", ".join(contexts))
    where += f", context {chosen!r}"
    _check_user(merged, contexts[chosen].get("user"), where)
    try:
        loader = library.KubeConfigLoader(config_dict=merged, config_base_path=None, active_context=chosen)
        login.rests[where].run(lambda: loader.load_and_set(configuration))
    except login.LoginError as error:
        raise login.failed(error, where) from error
    except Exception as error:
        raise SpecError(f"{where}: {login.plain(error)}") from error
    return contexts[chosen].get("namespace") or "", chosen


def _check_user(merged: Any, name: str | None, where: str) -> None:
    """Refuse a user that acts as another one: the library would send everything as the user itself."""
    user = next((item.value.get("user") for item in merged.value["users"] if item.value["name"] == name), None)
    if acts := sorted(key for key in user or () if key == "as" or key.startswith("as-")):
        raise SpecError(
            f"{where}: user {name!r} has {', '.join(acts)}, and distlaunch cannot act as another user",
            hint="name a context with credentials of that user: --context NAME",
        )


def _merged(library: Any, paths: list[str]) -> Any:
    """The kubeconfigs merged as kubectl does: unlike in the library, the first file with a current context wins."""
    merger = library.KubeConfigMerger("")
    for path in paths:
        merger.load_config(path)
    merged = merger.config.value
    merged["current-context"] = next(
        filter(None, (file.get("current-context") for file in merger.config_files.values())), ""
    )
    for kind, what in (("clusters", "cluster"), ("users", "user")):
        for item in merged[kind]:
            about = item.value.get(what) or {}
            for name in _FILES & about.keys():  # relative to the file that names it
                about[name] = os.path.join(os.path.dirname(item.path), about[name])
    return merger.config
