"""Controllers of other kinds of jobs: JobSet, Kubeflow's Trainer and two older operators, and Kueue's queues.

They run on the testbed's controller instead of in pods. Their own manifests are used, except for Deployments. No
Service has an address here, so the API server reaches their webhooks by names in its /etc/hosts.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import ssl
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from testbed import kube_programs
from testbed.errors import TestbedError
from testbed.kube_api import ClosingSocket
from testbed.kube_conf import flags
from testbed.kube_kinds import KINDS
from testbed.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from testbed.hosts import Host
    from testbed.kube_api import KubeApi, Object
    from testbed.kube_conf import KubeFiles
    from testbed.kube_kinds import Kind

LIMIT_S = 120
CERTIFICATES = Path("/tmp/k8s-webhook-server")
"""Where all controllers look for their certificates; each one's own directory is mounted there."""

HEALTH = 100
"""Offset from a controller's webhook port to its readiness port."""

PLAIN = ("Namespace", "CustomResourceDefinition", "Secret")
INIT_CONTAINER = """- name: init-pytorch
  image: {{.InitContainerImage}}
  imagePullPolicy: IfNotPresent
  command: ['sh', '-c', 'for i in $(seq {{.MaxTries}}); do getent hosts {{.MasterAddr}} && exit 0; \
sleep 1; done; exit 1']
"""
"""The container that waits for the master's name, with commands that the testbed's image has."""


class Cluster(Protocol):
    """The control plane that the controllers run beside (`testbed.kube.Kube`)."""

    controller: Host
    files: KubeFiles

    @property
    def api(self) -> KubeApi:
        """The administrator's connection."""

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""

    def connect(self) -> KubeApi:
        """A new connection as the administrator."""

    def kubectl(self, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator."""

    def know_name(self, host: str) -> None:
        """Make the API server resolve this name to the controller's address."""


def install(kube: Cluster, names: Sequence[str]) -> None:
    """Install these controllers; returns when all respond."""
    all_of_them = [Controller(name, kube, kube.connect()) for name in names]
    if not all_of_them:
        return
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Controller.prepare, all_of_them))
    wait_until("all new kinds to be served", lambda: all_served(kube.api), limit_s=LIMIT_S)
    with ThreadPoolExecutor(len(all_of_them)) as pool:
        list(pool.map(Controller.run, all_of_them))
    for controller in all_of_them:  # one may discover another's kinds late
        wait_until(
            f"{controller.name}'s webhooks to answer (see {kube.files.logs})", controller.answers, limit_s=LIMIT_S
        )
        controller.api.close()


def all_served(api: KubeApi) -> bool:
    """Whether the API server serves all kinds that are registered with it."""
    for crd in api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]:
        spec = crd["spec"]
        for version in (each["name"] for each in spec["versions"] if each["served"]):
            told = api.get_or_none(f"/apis/{spec['group']}/{version}") or {"resources": ()}
            if spec["names"]["plural"] not in {resource["name"] for resource in told["resources"]}:
                return False
    return True


@dataclass
class Controller:
    """One controller in one cluster."""

    name: str
    kube: Cluster
    api: KubeApi = field(repr=False)
    secret: tuple[str, str] = ("", "")
    """The secret for its certificate: namespace and name."""

    webhooks: list[Object] = field(default_factory=list, repr=False)
    """Its webhooks that have yet to answer: path and rules."""

    @property
    def kind(self) -> Kind:
        """Its entry in `KINDS`."""
        return KINDS[self.name]

    @property
    def directory(self) -> Path:
        """The directory of its files."""
        return self.kube.files.directory / self.name

    def prepare(self) -> None:
        """Register its kinds, and its webhooks, which do not answer yet."""
        documents = self._documents()
        self.secret = place_of(next((text for text in documents if kind_of(text) == "Secret"), ""))
        plain = "\n---\n".join(
            text for text in documents if kind_of(text) in PLAIN and place_of(text)[1] not in self.kind.without
        )
        self.kube.kubectl("create", "--validate=false", "-f", "-", stdin=plain)
        for text in documents:
            if kind_of(text).endswith("WebhookConfiguration"):
                self._install_webhooks(text)

    def run(self) -> None:
        """Start the controller, and wait until it is ready."""
        certificates = self.directory / "serving-certs"
        certificates.mkdir()
        daemon = self._start()
        if any(self.secret):
            self._copy_certificates(certificates, daemon)
        wait_until(
            f"{self.name} to be ready (see {self.kube.files.logs})", lambda: self._is_ready(daemon), limit_s=LIMIT_S
        )
        for made in self.kind.objects:
            self.kube.kubectl("apply", "-f", "-", stdin=json.dumps(made))

    def _documents(self) -> list[str]:
        """Its manifests, one document each."""
        tree = self.kind.overlay.partition("/")[0]
        shutil.copytree(kube_programs.directory(self.kind.build) / tree, self.directory / tree)
        overlay = self.directory / self.kind.overlay / "kustomization.yaml"
        lines = overlay.read_text().splitlines()
        overlay.write_text(
            "\n".join(line for line in lines if "third-party/jobset" not in line)
        )  # it is fetched from the internet
        return re.split(r"^---$", self.kube.kubectl("kustomize", str(overlay.parent)).stdout, flags=re.MULTILINE)

    def _install_webhooks(self, text: str) -> None:
        """Make the API server call its webhooks by a host name, instead of a Service's address."""
        made = json.loads(
            self.kube.kubectl(
                "create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-", stdin=text
            ).stdout
        )
        hosts = set()
        for webhook in made["webhooks"]:
            service = webhook["clientConfig"].pop("service")
            host = f"{service['name']}.{service['namespace']}.svc"
            webhook["clientConfig"]["url"] = f"https://{host}:{self.kind.port}{service['path']}"
            self.webhooks.append({"path": service["path"], "rules": webhook["rules"]})
            hosts.add(host)
        for host in sorted(hosts):
            self.kube.know_name(host)
        self.kube.kubectl("create", "--validate=false", "-f", "-", stdin=json.dumps(made))

    def _start(self) -> subprocess.Popen[Any]:
        """Start its program, with its own directory mounted at `CERTIFICATES`."""
        CERTIFICATES.mkdir(exist_ok=True)
        health, port = f":{self.kind.port + HEALTH}", self.kind.port
        values = dict(self.kind.flags)
        if self.kind.config:
            config = {
                **self.kind.config,
                "kind": "Configuration",
                "health": {"healthProbeBindAddress": health},
                "metrics": {"bindAddress": "0"},
                "webhook": {"port": port},
                "leaderElection": {"leaderElect": False},
            }
            (self.directory / "config.json").write_text(json.dumps(config))
            values["config"] = str(self.directory / "config.json")
        elif self.kind.port:
            values |= {"health-probe-bind-address": health, "webhook-server-port": str(port)}
        if self.name == "training-operator":
            (self.directory / "init.yaml").write_text(INIT_CONTAINER)
            values["pytorch-init-container-template-file"] = str(self.directory / "init.yaml")
        (program,) = self.kind.build.programs
        run = 'while :; do "$@"; sleep 1; done' if self.kind.started_again else 'exec "$@"'
        enter = f'mount --bind "$0" {CERTIFICATES} && {run}'
        argv = ("unshare", "--mount", "--propagation", "slave", "sh", "-c", enter, str(self.directory))
        schemes = (f"--enable-scheme={name}" for name in self.kind.schemes)
        return self.kube.controller.daemon(
            (*argv, kube_programs.find(self.kind.build, program), *flags(values), *schemes),
            self.kube.files.logs / f"{self.name}.log",
            env={"KUBECONFIG": str(self.kube.kubeconfig)},
        )

    def _copy_certificates(self, directory: Path, daemon: subprocess.Popen[Any]) -> None:
        """Do what a kubelet would: copy the secret that the controller has filled to the files that it reads."""
        namespace, name = self.secret

        def filled() -> dict[str, str] | None:
            self._is_alive(daemon)
            data: dict[str, str] = self.api.get(f"/api/v1/namespaces/{namespace}/secrets/{name}").get("data") or {}
            return data if "tls.crt" in data else None

        data = (
            wait_until(
                f"{self.name} to have made its certificate (see {self.kube.files.logs})", filled, limit_s=LIMIT_S
            )
            or {}
        )
        for file in sorted(data, key="tls.crt".__eq__):  # it waits for the certificate, so the others come first
            (directory / f".{file}").write_bytes(base64.b64decode(data[file]))
            (directory / f".{file}").rename(directory / file)

    def _is_ready(self, daemon: subprocess.Popen[Any]) -> bool:
        """Whether it reports that it is ready, with its webhooks."""
        self._is_alive(daemon)
        url = f"http://{self.kube.controller.address}:{self.kind.health or f'{self.kind.port + HEALTH}/readyz'}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def answers(self) -> bool:
        """Whether it answers at the webhooks of all served kinds; it looks for some kinds only now and then."""
        while self.webhooks:
            if any(self._is_served(rule) for rule in self.webhooks[-1]["rules"]):
                url = f"https://{self.kube.controller.address}:{self.kind.port}{self.webhooks[-1]['path']}"
                unverified = ssl._create_unverified_context()  # only the hosts can resolve its name
                unverified.sslsocket_class = ClosingSocket
                try:
                    urllib.request.urlopen(url, data=b"{}", timeout=5, context=unverified).close()
                except urllib.error.HTTPError as error:
                    with error:
                        if error.code == HTTPStatus.NOT_FOUND:
                            return False
                except OSError:
                    return False
            self.webhooks.pop()
        return True

    def _is_served(self, rule: Object) -> bool:
        """Whether the API server serves the kinds of a webhook's rule."""
        places = [f"/apis/{group}/{version}" for group in rule["apiGroups"] if group for version in rule["apiVersions"]]
        served = [(self.api.get_or_none(place) or {"resources": ()})["resources"] for place in places]
        return any(resource["name"] in rule["resources"] for resources in served for resource in resources)

    def _is_alive(self, daemon: subprocess.Popen[Any]) -> None:
        """Raise `TestbedError` if it has exited."""
        if daemon.poll() is not None:
            raise TestbedError(
                f"{self.name} has ended: {(self.kube.files.logs / f'{self.name}.log').read_text()[-800:]}"
            )


def kind_of(text: str) -> str:
    """The kind of one manifest."""
    return "".join(re.findall(r"^kind: (\w+)$", text, re.MULTILINE)[:1])


def place_of(text: str) -> tuple[str, str]:
    """The namespace and the name of one manifest."""
    name, namespace = (re.findall(rf"^  {key}: (\S+)$", text, re.MULTILINE)[:1] for key in ("name", "namespace"))
    return "".join(namespace), "".join(name)
