"""What is in a cluster, and what is done to it: pods, and as its administrator namespaces, users and their rights."""

from __future__ import annotations

import itertools
import secrets
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.testbed import kube_conf
from tests.testbed.errors import WaitError
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.testbed.kube_api import KubeApi, Object
    from tests.testbed.kube_conf import KubeFiles

LIMIT_S = 90


class KubeObjects(ABC):
    """The pods of one cluster."""

    @property
    @abstractmethod
    def api(self) -> KubeApi:
        """The API."""

    def pods(self, namespace: str, selector: str = "") -> list[Object]:
        """A namespace's pods, by name."""
        found = self.api.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)["items"]
        return sorted(found, key=lambda pod: pod["metadata"]["name"])

    def pod(self, namespace: str, name: str) -> Object | None:
        """One pod."""
        return self.api.get_or_none(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def wait_pod(self, namespace: str, name: str, *phases: str, limit_s: float = 60) -> Object:
        """Wait until a pod is in one of these phases."""

        def reached() -> Object | None:
            pod = self.pod(namespace, name)
            return pod if pod and pod["status"].get("phase") in phases else None

        try:
            return wait_until(f"pod {name} to be {' or '.join(phases)}", reached, limit_s=limit_s) or {}
        except WaitError as error:
            pod = self.pod(namespace, name)
            raise WaitError(f"{error}; it is {pod and pod['status']}; events: {self.events(namespace)}") from None

    def log(self, namespace: str, name: str, **query: str) -> str:
        """A pod's log."""
        return self.api.text(f"/api/v1/namespaces/{namespace}/pods/{name}/log", **query)

    def events(self, namespace: str) -> list[str]:
        """What happened in a namespace: `FailedScheduling: 0/2 nodes are available ...`."""
        found = self.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
        return [f"{event['reason']}: {event.get('message', '')}" for event in found]

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
    """What only an administrator makes: namespaces, users and their rights."""

    files: KubeFiles
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1), repr=False, init=False)

    @property
    @abstractmethod
    def server(self) -> str:
        """The API server's address."""

    def namespace(self, prefix: str = "test") -> str:
        """A new namespace, in which pods can be made."""
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

    def delete_namespace(self, name: str, *, wait: bool = False, limit_s: float = 60) -> None:
        """Delete a namespace with all that is in it; what its pods run is killed at once."""
        self.api.delete(f"/api/v1/namespaces/{name}/pods", gracePeriodSeconds=0)
        self.api.delete(f"/api/v1/namespaces/{name}")
        if wait:
            path = f"/api/v1/namespaces/{name}"
            wait_until(f"namespace {name} to be gone", lambda: self.api.get_or_none(path) is None, limit_s=limit_s)

    def account(self, namespace: str, name: str, rules: Sequence[Object] = ()) -> Path:
        """A service account with these rights in its namespace (a Role's `rules`) and no others; returns its kubeconfig."""
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
        """The kubeconfig of a user whom the API server knows and who may do nothing."""
        return self.files.user("stranger")

    def expired(self) -> Path:
        """A kubeconfig with credentials that the API server does not take (any more)."""
        return self._write_kubeconfig(self.files.user("expired"), "expired", secrets.token_hex(16))

    def quota(self, namespace: str, **hard: str) -> None:
        """Limit a namespace: `pods="1"`, `**{"requests.cpu": "1"}`; returns when the limit counts."""
        path = f"/api/v1/namespaces/{namespace}/resourcequotas"
        self.api.post(path, {"metadata": {"name": "quota"}, "spec": {"hard": hard}})
        wait_until("the quota to count", lambda: self.api.get(f"{path}/quota")["status"].get("hard"), limit_s=30)

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
        """Write one down."""
        path.write_text(kube_conf.kubeconfig(self.server, self.files.ca, user, token, namespace))
        path.chmod(0o600)
        return path
