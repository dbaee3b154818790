"""A cluster's objects: pods and, for its administrator, namespaces, users and their rights."""

from __future__ import annotations

import itertools
import secrets
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from textwrap import indent
from typing import TYPE_CHECKING, TypeVar

from testbed import kube_conf
from testbed.errors import TestbedError, WaitError
from testbed.kube_api import ApiError
from testbed.kube_watch import SILENT_S, brief, briefly, wait_for
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from testbed.kube_api import KubeApi, Object
    from testbed.kube_conf import KubeFiles

LIMIT_S = 180
ENDS = ("Succeeded", "Failed")
T = TypeVar("T")


class KubeObjects(ABC):
    """The pods of one cluster."""

    @property
    @abstractmethod
    def api(self) -> KubeApi:
        """The API."""

    def pods(self, namespace: str, selector: str = "") -> list[Object]:
        """A namespace's pods, sorted by name."""
        found = self.api.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)["items"]
        return sorted(found, key=lambda pod: pod["metadata"]["name"])

    def pod(self, namespace: str, name: str) -> Object | None:
        """One pod."""
        return self.api.get_or_none(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def wait_pods(
        self,
        namespace: str,
        what: str,
        condition: Callable[[list[Object]], T],
        *,
        selector: str = "",
        silent_s: float = SILENT_S,
    ) -> T:
        """Wait until a namespace's pods, sorted by name, meet a condition; it is checked at each change."""

        def asked(found: list[Object]) -> T:
            return condition(sorted(found, key=lambda pod: str(pod["metadata"]["name"])))

        try:
            return wait_for(
                self.api, f"/api/v1/namespaces/{namespace}/pods", what, asked, silent_s=silent_s, labelSelector=selector
            )
        except WaitError as error:
            raise WaitError(f"{error}; events: {self.events(namespace)}") from None

    def wait_pod(self, namespace: str, name: str, *phases: str, silent_s: float = SILENT_S) -> Object:
        """Wait until a pod is in one of these phases; if it ends in another, fail at once."""

        def reached(found: list[Object]) -> Object | None:
            pod = next((pod for pod in found if pod["metadata"]["name"] == name), None)
            phase = pod["status"].get("phase") if pod else None
            if pod and phase in ENDS and phase not in phases:
                raise WaitError(f"waited for pod {name} to be {' or '.join(phases)}, and it is: {brief(pod)}")
            return pod if phase in phases else None

        return self.wait_pods(namespace, f"pod {name} to be {' or '.join(phases)}", reached, silent_s=silent_s) or {}

    def wait_event(self, namespace: str, words: str) -> str:
        """Wait until an event of a namespace contains `words`; return its description."""

        def told(found: list[Object]) -> str:
            return next((brief(event) for event in found if words in str(event.get("message"))), "")

        return wait_for(self.api, f"/api/v1/namespaces/{namespace}/events", f"an event that says {words!r}", told)

    def wait_none(self, path: str, selector: str = "") -> None:
        """Wait until a collection is empty."""
        wait_for(self.api, path, "nothing to be left", lambda found: not found, labelSelector=selector)

    def wait_log(
        self, namespace: str, name: str, what: str, condition: Callable[[list[str]], T], *, silent_s: float = SILENT_S
    ) -> T:
        """Wait until the lines of a pod's log meet a condition; it is checked at each line."""
        said: list[str] = []

        def begun(found: list[Object]) -> bool:
            (pod,) = (pod for pod in found if pod["metadata"]["name"] == name)
            states = [status.get("state") or {} for status in pod["status"].get("containerStatuses") or ()]
            return any(state.keys() & {"running", "terminated"} for state in states)

        self.wait_pods(namespace, f"pod {name} to start", begun, silent_s=silent_s)
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/log"
        deadline = time.monotonic() + silent_s
        while time.monotonic() < deadline:
            count = len(said)
            said.clear()
            with suppress(TestbedError, TimeoutError), self.api.lines(path, silent_s=silent_s, follow="true") as lines:
                for line in lines:
                    said.append(line.decode(errors="replace").rstrip("\n"))
                    answer = condition(said)
                    if answer:
                        return answer
            deadline = time.monotonic() + silent_s if len(said) > count else deadline
            if (pod := self.pod(namespace, name)) is None or pod["status"].get("phase") in ENDS:
                break
            time.sleep(0.1)  # its kubelet is down, or does not know it yet
        raise WaitError(
            f"waited for {what} in the log of pod {name}; it is {(pod := self.pod(namespace, name)) and brief(pod)}; "
            f"it said: {said[-20:]}"
        )

    def log(self, namespace: str, name: str, **query: str) -> str:
        """A pod's log."""
        return self.api.text(f"/api/v1/namespaces/{namespace}/pods/{name}/log", **query)

    def events(self, namespace: str) -> list[str]:
        """A namespace's events: `FailedScheduling: 0/2 nodes are available ...`."""
        found = self.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
        return [f"{event['reason']}: {event.get('message', '')}" for event in found]

    def told(self, namespace: str) -> str:
        """A namespace's pods, with the ends of their logs, and its events: for the report of a failed test."""
        parts = []
        with suppress(TestbedError):
            for pod in self.pods(namespace):
                parts.append(f"{brief(pod)}\n")
                with suppress(TestbedError):
                    parts.append(indent(self.log(namespace, pod["metadata"]["name"], tailLines="20"), "    "))
            parts.append(briefly(self.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]))
        return "".join(parts) or "nothing\n"

    def delete_pod(self, namespace: str, name: str, *, grace_s: int | None = None) -> None:
        """Delete a pod: SIGTERM, and SIGKILL after its grace period or this one."""
        options = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        self.api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", **options)

    def evict(self, namespace: str, name: str) -> None:
        """Evict a pod, as `kubectl drain` does."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        self.api.post(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)


@dataclass
class AdminObjects(KubeObjects):
    """What only an administrator can create: namespaces, users and their rights."""

    files: KubeFiles
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1), repr=False, init=False)

    @property
    @abstractmethod
    def server(self) -> str:
        """The API server's address."""

    def namespace(self, prefix: str = "test") -> str:
        """Create a namespace that is ready for pods."""
        name = f"{prefix}-{next(self._numbers)}"
        self.api.post("/api/v1/namespaces", {"metadata": {"name": name}})
        self._wait_account(name)
        return name

    @contextmanager
    def lend_namespace(self) -> Iterator[str]:
        """A new namespace that is deleted afterwards."""
        name = self.namespace()
        yield name
        self.delete_namespace(name)

    def delete_namespace(self, name: str, *, wait: bool = False, limit_s: float = LIMIT_S) -> None:
        """Delete a namespace with all its objects; its pods are killed at once."""
        self.api.delete(f"/api/v1/namespaces/{name}/pods", gracePeriodSeconds=0)
        self.api.delete(f"/api/v1/namespaces/{name}")
        if wait:
            path = f"/api/v1/namespaces/{name}"
            wait_until(f"namespace {name} to be gone", lambda: self.api.get_or_none(path) is None, limit_s=limit_s)

    def account(self, namespace: str, name: str, rules: Sequence[Object] = ()) -> Path:
        """Create a service account with only these rights in its namespace (`rules`); return its kubeconfig."""
        roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
        self.api.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
        if rules:
            self.api.post(f"{roles}/roles", {"metadata": {"name": name}, "rules": list(rules)})
            binding = {
                "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
            }
            self.api.post(f"{roles}/rolebindings", binding)
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = self.api.post(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", asked)["status"]["token"]
        return self._write_kubeconfig(self.files.user(f"{namespace}-{name}"), name, token, namespace)

    def stranger(self) -> Path:
        """The kubeconfig of a user without rights."""
        return self.files.user("stranger")

    def expired(self) -> Path:
        """A kubeconfig with credentials that the API server rejects, as if they had expired."""
        return self._write_kubeconfig(self.files.user("expired"), "expired", secrets.token_hex(16))

    def quota(self, namespace: str, **hard: str) -> None:
        """Limit a namespace: `pods="1"`, `**{"requests.cpu": "1"}`; returns when the limit is in effect."""
        path = f"/api/v1/namespaces/{namespace}/resourcequotas"
        self.api.post(path, {"metadata": {"name": "quota"}, "spec": {"hard": {**hard, "count/podtemplates": "0"}}})
        template = {"metadata": {"name": "x"}, "template": {"spec": {"containers": [{"name": "x", "image": "x"}]}}}

        def counts() -> bool:  # it is stored before admission enforces it
            try:
                self.api.post(f"/api/v1/namespaces/{namespace}/podtemplates", template, dryRun="All")
            except ApiError as error:
                return "exceeded quota" in str(error)
            return False

        wait_until("the quota to count", counts, limit_s=LIMIT_S)

    def _wait_account(self, namespace: str) -> None:
        """Wait for a namespace's default service account and its certificate, without which no pod starts."""
        path = f"/api/v1/namespaces/{namespace}"
        for name in ("serviceaccounts/default", "configmaps/kube-root-ca.crt"):
            wait_until(
                f"namespace {namespace} to have its {name} (see {self.files.logs})",
                lambda place=f"{path}/{name}": self.api.get_or_none(place),  # type: ignore[misc]
                limit_s=LIMIT_S, every_s=0.05,
            )  # fmt: skip

    def _write_kubeconfig(self, path: Path, user: str, token: str, namespace: str = "default") -> Path:
        """Write a kubeconfig."""
        path.write_text(kube_conf.kubeconfig(self.server, self.files.ca, user, token, namespace))
        path.chmod(0o600)
        return path
