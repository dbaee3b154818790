"""Waiting for a cluster by its own events: whatever happens begins the limit anew, and the error says what is there."""

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
"""So long nothing may happen."""

LIMIT_S = 240.0
"""So long something may happen that is not what is waited for."""

_LATER = (410, 429)
"""What was asked for is too old by now, or an API server with much to do wants to be asked later."""


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
    """Wait until the objects of a collection are as a condition asks, and return what it says.

    Args:
        path: of the collection, as `/api/v1/namespaces/NAME/pods`.
        what: what is waited for, as the error will say it: "two pods to run".
        condition: asked at the beginning and after each change; what it raises ends the wait.
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
    """A collection now and after each of its changes; ends when there was none for `silent_s`."""
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
                    if event["type"] == "ERROR":  # too old by now: all is listed again
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
        except (TestbedError, ValueError):  # the API server is away, or went in the middle of a line
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
    """Objects one by one."""
    return "".join(f"{brief(item)}\n" for item in items)
