"""An API server in one process, with one run of many pods that print: to see what it costs to follow them.

    python -m tests.k8s.many_pods DIRECTORY PODS LINES [SILENT [FAILS [DEAD]]]

It prints the path of a kubeconfig. Each pod prints its lines, ten a second, and ends; the first SILENT ones print one
and wait. In the end the rank of node FAILS fails, and all nodes with it. The hosts of the first DEAD pods do not
answer. Each connection to a log breaks off once, in the middle. Connections use TLS, as those to a real one. `asked`
tells what was asked of it.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

from launcher.agent.protocol import encode_event
from launcher.agent.stream.plain import Encoder

RUN = "many-20261120-140000-abcd"
_EVERY_S = 0.1
_END = "2026-11-20T14:05:00Z"


def line(node: int, number: int) -> str:
    """The text of one line of a rank."""
    return f"rank {node} line {number}"


def asked(kubeconfig: str) -> dict[str, int]:
    """How often logs were opened, how many at once at most, and how many lists and pages of pods it has sent."""
    cluster = json.loads(Path(kubeconfig).read_text(encoding="utf-8"))["clusters"][0]["cluster"]
    trusted = ssl.create_default_context(cafile=cluster["certificate-authority"])
    with urlopen(f"{cluster['server']}/asked", context=trusted, timeout=60) as answer:
        found: dict[str, int] = json.load(answer)
    return found


class Server:
    """Answers GET requests about the run."""

    def __init__(self, pods: int, lines: int, silent: int, fails: int = -1, dead: int = 0) -> None:
        self._pods, self._lines, self._silent, self._fails, self._dead = pods, lines, silent, fails, dead
        self._dead_asked: Counter[int] = Counter()
        self._again = 0
        self._start = time.time()
        self._broken: set[int] = set()
        self._open_logs = 0
        self._asked = {"logs": 0, "logs_at_once": 0, "lists": 0, "pages": 0, "dead_again": 0, "dead_again_at_once": 0}

    @property
    def _over(self) -> bool:
        return time.time() > self._start + self._lines * _EVERY_S

    def _log(self, node: int) -> list[tuple[float, bytes]]:
        """The lines of a pod with their times."""
        encode = Encoder().encode
        started = encode_event("agent_started", node, version=1, run=RUN, host=f"h{node}", pid=1, start_ticks=1)
        result, code, cause = ("failed", 1, self._cause()) if self._fails >= 0 else ("success", 0, None)
        done = encode_event("done", node, result=result, exit_code=code, cause=cause, restarts=0, duration_s=1.0)
        printed = [
            (self._start + number * _EVERY_S, encode(f"[{node}:{node}] {line(node, number)}\n".encode()))
            for number in range(1 if node < self._silent else self._lines)
        ]
        return [(self._start, encode(started)), *printed, (self._start + self._lines * _EVERY_S, encode(done))]

    def _cause(self) -> dict[str, Any]:
        """Why the run fails, as all agents know it."""
        place = {"host": f"h{self._fails}", "node": self._fails, "rank": self._fails, "local_rank": 0}
        told = {"message": "ValueError: boom", "exit_code": 1, "signal": None, "traceback": None, "secondary": False}
        return {"class": "user_code", **place, **told, "time": self._start + self._lines * _EVERY_S}

    def _pod(self, node: int) -> dict[str, Any]:
        over, failed = self._over, self._fails >= 0
        phase, reason = ("Failed", "Error") if failed else ("Succeeded", "Completed")
        end = {"exitCode": int(failed), "reason": reason, "finishedAt": _END}
        state: dict[str, Any] = {"terminated": end} if over else {"running": {}}
        name = f"{RUN}-{node}-abcde"
        own = {
            "name": "node", "state": state, "lastState": {}, "ready": not over, "restartCount": 0, "started": not over,
            "image": "registry.example.com/team/pytorch:2.12-cuda13", "imageID": f"sha256:{node:064x}",
            "containerID": f"containerd://{node:064x}", "resources": {"requests": {"cpu": "8", "memory": "64Gi"}},
            "volumeMounts": [{"name": each, "mountPath": f"/{each}", "readOnly": True} for each in ("input", "data")],
        }  # fmt: skip
        env = [{"name": f"VARIABLE_{number}", "value": f"value {number} of {node}"} for number in range(30)]
        kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
        times = {"lastProbeTime": None, "lastTransitionTime": "2026-11-20T14:00:01Z", "observedGeneration": 1}
        return {
            "metadata": {
                "name": name, "uid": f"u{node}", "creationTimestamp": "2026-11-20T14:00:00Z",
                "labels": {"distlaunch/run": RUN, "batch.kubernetes.io/job-completion-index": str(node)},
                "resourceVersion": "2" if over else "1",
                "managedFields": [{"manager": each, "fieldsV1": {f"f:{key}": {} for key in own}} for each in "ab"],
            },
            "spec": {"nodeName": f"h{node}", "containers": [{**own, "env": env, "command": ["sh", "-c", "x" * 1500]}]},
            "status": {
                "phase": phase if over else "Running", "startTime": "2026-11-20T14:00:00Z",
                "qosClass": "Burstable", "hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.1"}],
                "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}],
                "conditions": [{"type": kind, "status": "True", **times} for kind in kinds], "containerStatuses": [own],
            },
        }  # fmt: skip

    def _job(self) -> dict[str, Any]:
        about = {"kind": "job", "command": ["x.py"], "cwd": "/", "nodes": self._pods, "min_nodes": self._pods}
        about |= {"workers": 1, "grace_s": 1.0, "python": "python3", "user": "ada"}
        meta = {"name": RUN, "uid": "u", "labels": {"distlaunch/run": RUN}, "creationTimestamp": "2026-11-20T14:00:00Z"}
        ends = [{"type": "Complete" if self._fails < 0 else "Failed", "status": "True"}] if self._over else []
        noted = {"annotations": {"distlaunch/about": json.dumps(about)}}
        return {"metadata": {**meta, **noted}, "spec": {}, "status": {"conditions": ends}}

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            while request := (await reader.readuntil(b"\r\n\r\n")).decode():
                url = urlsplit(request.split(" ")[1])
                query = {key: values[0] for key, values in parse_qs(url.query).items()}
                if url.path.endswith("/log"):
                    node = int(url.path.split("/")[-2].split("-")[-2])
                    if node < self._dead:
                        await self._ignore(node, reader)
                    await self._stream(writer, self._counted(self._lines_of(node, query)))
                elif "watch" in query:
                    await self._stream(writer, self._changes())
                else:
                    body = json.dumps(self._value(url.path.rpartition("/")[2], query)).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _value(self, name: str, query: dict[str, str]) -> dict[str, Any]:
        items: list[dict[str, Any]] = []
        metadata = {"resourceVersion": "1"}
        if name == "apis":
            return {"groups": [{"name": "batch"}]}
        if name == "asked":
            return self._asked
        if name == RUN:
            return self._job()
        if name == "jobs":
            items = [self._job()]
        if name == "pods":
            first = int(query.get("continue", 0))
            self._asked["lists"] += first == 0
            self._asked["pages"] += 1
            last = first + int(query.get("limit", self._pods))
            items = [self._pod(node) for node in range(first, min(last, self._pods))]
            metadata |= {"continue": str(last)} if last < self._pods else {}
        return {"metadata": metadata, "items": items}

    async def _stream(self, writer: asyncio.StreamWriter, pieces: Any) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await writer.drain()
        async for piece in pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _ignore(self, node: int, reader: asyncio.StreamReader) -> None:
        """Answer nothing; requests after the first one of each node are counted."""
        self._dead_asked[node] += 1
        again = self._dead_asked[node] > 1
        self._again += again
        self._asked["dead_again"] = sum(times > 1 for times in self._dead_asked.values())
        self._asked["dead_again_at_once"] = max(self._asked["dead_again_at_once"], self._again)
        try:
            await reader.readexactly(1)
        finally:
            self._again -= again

    async def _counted(self, lines: Any) -> Any:
        self._open_logs += 1
        self._asked["logs"] += 1
        self._asked["logs_at_once"] = max(self._asked["logs_at_once"], self._open_logs)
        try:
            async for line in lines:
                yield line
        finally:
            self._open_logs -= 1

    async def _lines_of(self, node: int, query: dict[str, str]) -> Any:
        for number, (when, text) in enumerate(self._log(node)):
            if "follow" in query:
                await asyncio.sleep(max(0.0, when - time.time()))
            elif when > time.time():
                return
            if number == self._lines // 2 and node not in self._broken:
                self._broken.add(node)
                raise ConnectionError
            fraction = f"{when % 1:.9f}"[1:]
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(when)) + fraction
            if stamp >= query.get("sinceTime", "")[:19]:
                yield f"{stamp}Z ".encode() + text

    async def _changes(self) -> Any:
        while not self._over:
            await asyncio.sleep(_EVERY_S)
        for node in range(self._pods):
            yield json.dumps({"type": "MODIFIED", "object": self._pod(node)}).encode() + b"\n"
        await asyncio.sleep(600)


async def serve(directory: Path, pods: int, lines: int, silent: int = 0, fails: int = -1, dead: int = 0) -> None:
    """Serve until killed."""
    key, cert = directory / "key.pem", directory / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert)]
    names = ["-days", "2", "-subj", "/CN=many", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, *names], check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    answers = Server(pods, lines, silent, fails, dead).answer
    server = await asyncio.start_server(answers, "127.0.0.1", 0, ssl=context, backlog=1024)
    where = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    config = {
        "clusters": [{"name": "c", "cluster": {"server": where, "certificate-authority": str(cert)}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "current-context": "c",
    }
    (directory / "many.kubeconfig").write_text(json.dumps(config))
    print(directory / "many.kubeconfig", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), *map(int, sys.argv[2:])))
