"""Waiting for a cluster by its events: each event restarts the limit, and the error lists the objects."""

from __future__ import annotations

import json
import time
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from testbed.errors import TestbedError, WaitError
from testbed.kube_api import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from testbed.kube_api import KubeApi, Object

T = TypeVar("T")

SILENT_S = 150.0
"""Seconds without an event after which a wait fails."""

LIMIT_S = 240.0
"""Seconds after which a wait fails in spite of events."""

_LATER = (410, 429)
"""Retried: the requested version is too old, or an overloaded API server asks for a later retry."""


def wait_for(
    api: KubeApi,
    path: str,
    what: str,
    condition: Callable[[list[Object]], T],
    *,
    silent_s: float = SILENT_S,
    limit_s: float = LIMIT_S,
    **query: str,
) -> T:
    """Wait until the objects of a collection meet a condition, and return its result.

    Args:
        path: of the collection, as `/api/v1/namespaces/NAME/pods`.
        what: what is waited for, as named in the error: "two pods to run".
        condition: called at the start and after each change; an exception ends the wait.
        query: `labelSelector`, `fieldSelector`.
    """
    deadline = time.monotonic() + limit_s
    found: list[Object] = []
    with closing(changes(api, path, silent_s, query)) as all_of_them:
        for found in all_of_them:
            answer = condition(found)
            if answer:
                return answer
            if time.monotonic() > deadline:
                break
    late = f"{limit_s:g} s" if time.monotonic() > deadline else f"{silent_s:g} s in which nothing happened"
    raise WaitError(f"waited {late} for {what}; in {path} there is: {'; '.join(map(brief, found)) or 'nothing'}")


def changes(api: KubeApi, path: str, silent_s: float, query: dict[str, str]) -> Generator[list[Object], None, None]:
    """A collection now and after each of its changes; ends after `silent_s` without a change."""
    deadline, versions = time.monotonic() + silent_s, None
    while time.monotonic() < deadline:
        try:
            listed = api.get(path, **query)
            known = {item["metadata"]["uid"]: item for item in listed["items"]}
            before, versions = versions, {uid: item["metadata"]["resourceVersion"] for uid, item in known.items()}
            if versions != before:
                deadline = time.monotonic() + silent_s
            yield list(known.values())
            more = {**query, "watch": "true", "resourceVersion": listed["metadata"]["resourceVersion"]}
            with api.lines(path, silent_s=max(1.0, deadline - time.monotonic()), **more) as lines:
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":  # the version is too old: list again
                        break
                    item = event["object"]
                    known.pop(item["metadata"]["uid"], None)
                    if event["type"] != "DELETED":
                        known[item["metadata"]["uid"]] = item
                    deadline = time.monotonic() + silent_s
                    yield list(known.values())
        except TimeoutError:
            continue
        except ApiError as error:
            if error.status < 500 and error.status not in _LATER:
                raise
            time.sleep(0.1)
        except (TestbedError, ValueError):  # the API server is down, or exited in the middle of a line
            time.sleep(0.1)
    yield api.get(path, **query)["items"]


def brief(item: Object) -> str:
    """An object in a few words, for errors."""
    meta, status = item["metadata"], item.get("status") or {}
    if "involvedObject" in item:
        return f"{item.get('reason')} of {item['involvedObject'].get('name')}: {item.get('message')}"
    words = [str(meta["name"])]
    words += ["(to be deleted)"] if "deletionTimestamp" in meta else []
    words += [str(status[key]) for key in ("phase", "reason", "message") if status.get(key)]
    for container in status.get("containerStatuses") or ():
        for kind, told in (container.get("state") or {}).items():
            more = [str(told[key]) for key in ("reason", "exitCode", "message") if told.get(key) is not None]
            words.append(f"[{container['name']} {kind}{': ' if more else ''}{' '.join(more)}]")
    words += [_condition(condition) for condition in status.get("conditions") or ()]
    return " ".join(words)


def _condition(condition: Object) -> str:
    why = f" ({condition['reason']})" if condition.get("reason") else ""
    return f"{condition['type']}={condition['status']}{why}"


def briefly(items: Sequence[Object]) -> str:
    """Objects, one per line."""
    return "".join(f"{brief(item)}\n" for item in items)
