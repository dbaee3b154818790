"""An existing cluster, given by a kubeconfig, in which tests use one namespace."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from testbed import processes
from testbed.errors import NotAvailableError, TestbedError
from testbed.kube_api import ApiError, KubeApi, message
from testbed.kube_objects import KubeObjects

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

VARIABLE = "DISTLAUNCH_TEST_KUBECONFIG"
"""Names the kubeconfig whose current context tests use; KUBECONFIG alone is not taken for permission."""

IMAGE_VARIABLE = "DISTLAUNCH_TEST_IMAGE"
IMAGE = "pytorch/pytorch"


class ClientApi(KubeApi):
    """The API through the client library, which supports certificates and login plugins."""

    def __init__(self, kubeconfig: str) -> None:
        import kubernetes.config
        from kubernetes.client.configuration import Configuration
        from kubernetes.client.rest import RESTClientObject

        known: Any = kubernetes.config
        self._configuration: Any = Configuration()
        known.load_kube_config(kubeconfig, client_configuration=self._configuration, persist_config=False)
        self.namespace: str = known.list_kube_config_contexts(kubeconfig)[1]["context"].get("namespace", "default")
        self._pool = RESTClientObject(self._configuration).pool_manager

    def close(self) -> None:
        """Do nothing: no connection is held."""

    @contextmanager
    def lines(self, path: str, *, silent_s: float, **query: str) -> Iterator[Iterator[bytes]]:
        """See `KubeApi`; over the client library's connections."""
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError, ReadTimeoutError

        headers = {item["key"]: item["value"] for item in self._configuration.auth_settings().values()}
        url = self._configuration.host + path + (f"?{urlencode(query)}" if query else "")
        limit = Timeout(connect=60, read=silent_s)
        try:
            answer = self._pool.request(
                "GET", url, headers=headers, timeout=limit, retries=False, preload_content=False
            )
            if answer.status >= 300:
                raise ApiError(answer.status, message(answer.data))
            try:
                yield iter(answer.readline, b"")
            finally:
                answer.close()
        except ReadTimeoutError as error:
            raise TimeoutError from error
        except (HTTPError, OSError) as error:
            raise TestbedError(f"GET {path}: the API server cannot be reached: {error!r}") from error

    def _request(
        self, method: str, path: str, body: Any, query: dict[str, str], content: str = "application/json"
    ) -> bytes:
        headers = {item["key"]: item["value"] for item in self._configuration.auth_settings().values()}
        data = None if body is None else json.dumps(body).encode()
        url = self._configuration.host + path + (f"?{urlencode(query)}" if query else "")
        answer = self._pool.request(method, url, body=data, headers={**headers, "Content-Type": content}, timeout=60)
        if answer.status >= 300:
            raise ApiError(answer.status, message(answer.data))
        return bytes(answer.data)


@dataclass
class GivenCluster(KubeObjects):
    """A cluster for pods, without faults to inject."""

    kubeconfig: Path
    _api: ClientApi = field(repr=False)

    @property
    def api(self) -> ClientApi:
        """The API, as the kubeconfig's user."""
        return self._api

    @contextmanager
    def lend_namespace(self) -> Iterator[str]:
        """The context's own namespace, from which all runs are removed afterwards."""
        name = self._api.namespace
        yield name
        jobs = f"/apis/batch/v1/namespaces/{name}/jobs?labelSelector=distlaunch/run"
        self._api.delete(jobs, propagationPolicy="Background")

    def kubectl(self, *args: str, stdin: str = "", timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run the kubectl on PATH."""
        found = shutil.which("kubectl")
        if found is None:
            raise TestbedError("there is no kubectl on PATH")
        return processes.run(
            (found, f"--kubeconfig={self.kubeconfig}", *args), timeout_s=timeout_s, stdin=stdin, check=True
        )


def named() -> bool:
    """Whether a cluster is given."""
    return bool(os.environ.get(VARIABLE))


def given() -> GivenCluster | None:
    """The given cluster; None if tests make their own. Raises `NotAvailableError`."""
    path = os.environ.get(VARIABLE, "")
    if not path:
        return None
    if not os.path.exists(path):
        raise NotAvailableError(f"{VARIABLE} names {path!r}, which does not exist")
    return GivenCluster(Path(path).absolute(), ClientApi(path))


def image() -> str:
    """An image that the cluster can pull, with Python and torch."""
    return os.environ.get(IMAGE_VARIABLE) or IMAGE
