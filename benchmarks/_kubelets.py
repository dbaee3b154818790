"""The kubelets of a cluster without real nodes: bound pods run until they are deleted, and have logs."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from launcher.agent.protocol import encode_event
from launcher.agent.stream.plain import Encoder
from testbed import kube_simulated
from testbed.errors import TestbedError
from testbed.kube_api import ApiError

if TYPE_CHECKING:
    from testbed import Kube
    from testbed.kube_api import KubeApi, Object

_THREADS = 4
_SILENT_S = 600.0
_POLL_S = 0.2
_INDEX = "batch.kubernetes.io/job-completion-index"
_BOUND = "spec.nodeName!="


def line(node: int) -> str:
    """What the only rank of that node prints."""
    return f"rank {node} is there"


class Kubelets:
    """One program for all nodes, in threads: one watches the pods, some change them, one answers for their logs."""

    def __init__(self, kube: Kube, address: str) -> None:
        """`address`: of this machine, as the API server reaches it."""
        self._kube, self._address, self._nodes = kube, address, 0
        self._server = _Server((address, 0), _Logs)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(kube.files.ca, kube.files.ca.with_suffix(".key"))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._pool, self._own = ThreadPoolExecutor(_THREADS), threading.local()
        self._known: set[str] = set()
        self.failures: list[str] = []
        for work in (self._server.serve_forever, self._watch):
            threading.Thread(target=work, daemon=True).start()

    def add(self, nodes: int) -> None:
        """Have this many nodes, Ready and with a GPU's resource."""
        list(self._pool.map(self._add, range(self._nodes, nodes)))
        self._nodes = max(self._nodes, nodes)

    def close(self) -> None:
        """Answer no more; the cluster ends anyway."""
        self._server.over = True
        self._server.shutdown()
        self._server.server_close()
        self._pool.shutdown(cancel_futures=True)

    @property
    def _api(self) -> KubeApi:
        if not hasattr(self._own, "api"):
            self._own.api = self._kube.connect()
        api: KubeApi = self._own.api
        return api

    def _add(self, number: int) -> None:
        node = kube_simulated.node(number, tainted=False)
        node["status"] |= {
            "addresses": [{"type": "InternalIP", "address": self._address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.server_address[1]}},
        }
        self._api.post("/api/v1/nodes", node)

    def _watch(self) -> None:
        """Hear of all bound pods, and do with each what its kubelet would."""
        query = {"watch": "true", "fieldSelector": _BOUND}
        while not self._server.over:
            with (
                contextlib.suppress(TestbedError, TimeoutError, RuntimeError),  # the pool is closed
                self._kube.connect().lines("/api/v1/pods", silent_s=_SILENT_S, **query) as lines,
            ):
                for event in map(json.loads, lines):
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._hear(event["object"])
            time.sleep(0.2)

    def _hear(self, pod: Object) -> None:
        meta, deleted = pod["metadata"], "deletionTimestamp" in pod["metadata"]
        if f"{meta['uid']} {deleted}" in self._known or not (deleted or pod["status"]["phase"] == "Pending"):
            return
        self._known.add(f"{meta['uid']} {deleted}")
        self._pool.submit(self._change, pod, deleted)

    def _change(self, pod: Object, deleted: bool) -> None:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        try:
            if deleted:
                self._server.ended.add(pod["metadata"]["name"])
                self._api.patch(f"{path}/status", {"status": _stopped(pod)})  # it may stay, for a finalizer
                self._api.delete(path, gracePeriodSeconds=0)
            else:
                self._api.patch(f"{path}/status", {"status": _running(pod)})
        except ApiError as error:
            if error.status not in (404, 409):
                self.failures.append(str(error))
        except TestbedError as error:
            self.failures.append(str(error))


def _running(pod: Object) -> dict[str, Any]:
    """The status of a pod whose containers run; no two pods have the same address."""
    node = int(pod["metadata"]["labels"].get(_INDEX, "0"))
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    address = f"10.245.{node // 250}.{node % 250 + 1}"
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    containers = [
        {
            "name": each["name"], "image": each["image"], "imageID": "", "ready": True, "restartCount": 0,
            "started": True, "containerID": f"containerd://{pod['metadata']['uid']}",
            "state": {"running": {"startedAt": now}},
        }
        for each in pod["spec"]["containers"]
    ]  # fmt: skip
    return {
        "phase": "Running", "startTime": now, "podIP": address, "podIPs": [{"ip": address}],
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds],
        "containerStatuses": containers,
    }  # fmt: skip


def _stopped(pod: Object) -> dict[str, Any]:
    """The status of a pod whose containers were asked to stop, and did."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    end = {"terminated": {"exitCode": 143, "reason": "Error", "startedAt": now, "finishedAt": now}}
    known = pod["status"].get("containerStatuses") or ()
    statuses = [{**each, "ready": False, "started": False, "state": end} for each in known]
    return {"phase": "Failed", "containerStatuses": statuses}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ended: set[str] = set()
        """Pods whose logs grow no more."""

        self.over = False


class _Logs(BaseHTTPRequestHandler):
    """Serves /containerLogs/NAMESPACE/POD/CONTAINER, for all nodes; a log that is followed ends with its pod."""

    server: _Server

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        pod = url.path.split("/")[3]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(_log(pod))
        while "follow=true" in url.query and pod not in self.server.ended and not self.server.over:
            time.sleep(_POLL_S)

    def log_message(self, *_: Any) -> None:
        pass


@cache
def _log(pod: str) -> bytes:
    """What a pod has printed; the same whenever it is read."""
    run, node, _ = pod.rsplit("-", 2)
    encode, stamp = Encoder().encode, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    told = encode_event("agent_started", int(node), version=1, run=run, host=f"sim-{node}", pid=1, start_ticks=1)
    lines = (encode(told), encode(f"[{node}:{node}] {line(int(node))}\n".encode()))
    return b"".join(f"{stamp}.{place:09}Z ".encode() + text for place, text in enumerate(lines, 1))
