"""The connection to the API server, from a kubeconfig or a pod's account, also through a login node.

Only this module, `api`, `library` and `kubeconfig` know the client library. It does the hard parts:
kubeconfig files with contexts, certificates and login plugins.
"""

from __future__ import annotations

import logging
import os
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

from launcher.agent.named_tuple import NamedTuple
from launcher.backends.kubernetes import kubeconfig, library, login
from launcher.backends.kubernetes.access import Access
from launcher.backends.kubernetes.api import Cluster
from launcher.errors import BackendUnavailableError
from launcher.login import forward
from launcher.login.connection import Login
from launcher.system import install

if TYPE_CHECKING:
    from launcher.backends.kubernetes.handle import KubernetesHandle
    from launcher.backends.kubernetes.library import Library
    from launcher.login.forward import Forward

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_CONNECTIONS = 256


def connect(setting: str, context: str, namespace: str, address: str = "", name: str = "") -> Cluster:
    """The cluster of the kubeconfig's context; without a kubeconfig, the one whose pod this process runs in.

    `address`: of the login node that reaches its API server; `name`: what messages call it.
    """
    return _in(namespace, _connect(kubeconfig.find(setting), context, Login.of(address, name)))


def again(handle: KubernetesHandle) -> Cluster:
    """The cluster that a run was sent to, even if the environment or the kubeconfig's current context has changed."""
    paths = kubeconfig.find(handle["kubeconfig"]) if handle["kubeconfig"] else []
    through = Login.of(handle.get("login", ""), handle.get("cluster", ""))
    versions = tuple((path, os.stat(path).st_mtime_ns, os.path.getsize(path)) for path in paths)
    return _in(handle["namespace"], _known(versions, handle["context"], through))


class _Way(NamedTuple):
    """How a cluster is reached, which its runs share."""

    access: Access
    context: str
    namespace: str
    """The context's own."""

    tunnel: Forward | None


def _in(namespace: str, way: _Way) -> Cluster:
    return Cluster(way.context, namespace or way.namespace or "default", way.access, way.tunnel)


@cache
def _known(versions: tuple[tuple[str, int, int], ...], context: str, through: Login | None) -> _Way:
    """One for all runs of a context, whose login plugin so runs once, until one of the kubeconfigs changes."""
    paths = [path for path, *_ in versions]
    return _connect(paths, context, through, "the run was started in a pod of its cluster")


def _connect(paths: list[str], context: str, through: Login | None, lost: str = "") -> _Way:
    if through:
        through.words()
    try:
        kubernetes = library.load()
    except ImportError as error:
        raise BackendUnavailableError("the kubernetes client is not installed", hint=install.command("k8s")) from error

    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    found, chosen, tunnel = "", context, None

    def make() -> tuple[Any, Any]:
        nonlocal found, chosen, tunnel
        configuration = kubernetes.configuration()
        found, chosen = _load(kubernetes, paths, chosen, configuration, lost)
        configuration.connection_pool_maxsize = _CONNECTIONS
        if through:
            configuration.proxy = None  # the login node needs none
            tunnel = tunnel or forward.to(through, *library.place(configuration.host))
        library.use_proxy(configuration)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it says the same as the error
                pool = kubernetes.rest(configuration).pool_manager
        except ImportError as error:
            why = "the SOCKS proxy before the API server needs PySocks, which is not installed"
            raise BackendUnavailableError(why, hint="pip install PySocks") from error
        library.keep_small(pool, tunnel.dial if tunnel else None)
        return configuration, pool

    access = Access(make)
    return _Way(access, chosen, found, tunnel)


def _load(kubernetes: Library, paths: list[str], context: str, configuration: Any, lost: str) -> tuple[str, str]:
    """Read where the API server is, and the credentials; returns the namespace and the context."""
    if paths:
        return kubeconfig.load(kubernetes.kube_config, paths, context, configuration)
    if os.path.exists(f"{_ACCOUNT}/token"):
        try:
            kubernetes.in_cluster(client_configuration=configuration)
        except Exception as error:
            why = f"the account of this pod cannot be used: {login.plain(error)}"
            raise BackendUnavailableError(why, hint="give a kubeconfig: --kubeconfig FILE") from error
        return _read(f"{_ACCOUNT}/namespace"), context
    if lost:
        raise BackendUnavailableError(f"{lost}, and this is not a pod", hint="run this command in such a pod")
    raise BackendUnavailableError(
        "there is no kubeconfig: neither --kubeconfig, nor KUBECONFIG, nor ~/.kube/config, and this is not a pod",
        hint="get one from your cluster's administrators, or with its provider's command line",
    )


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
