"""The client library without what a command does not need: time to import, and memory for each connection."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import importlib
import importlib.util
import os
import ssl
import sys
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from launcher.agent.named_tuple import NamedTuple
from launcher.agent.store.interface import watch_host
from launcher.system import listener

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

_PACKAGES = ("kubernetes", "kubernetes.utils", "kubernetes.client")
_LATER = ("oauthlib", "oauthlib.oauth2", "requests_oauthlib")
_PROCESSES = "multiprocessing"
"""The library only wants to know the number of CPUs from it."""

_BUFFER_BYTES = 512
"""Of what a connection has received; http.client's buffers have 8 kB."""

_DEAD_S = 60.0
"""A host whose kernel answers nothing for this long ends a connection that we wait for."""

_M_MMAP_THRESHOLD, _MAPPED_BYTES = -3, 16 << 10
"""The parameter's number in <malloc.h>, and its value."""


class Library(NamedTuple):
    """What we use of it."""

    kube_config: Any
    """The module that reads kubeconfigs."""

    in_cluster: Any
    """Reads the account of a pod."""

    configuration: Any
    rest: Any


@cache
def load() -> Library:
    """Import what we use. Raises `ImportError` without the library.

    Its packages import all of their modules, also unused ones (models, dynamic clients): half a second of CPU, and
    20 MB. They are empty here, and a program that imports them later gets them whole.
    """
    known = {name: sys.modules.get(name) for name in (*_PACKAGES, *_LATER, _PROCESSES)}
    ours = [name for name, module in known.items() if module is None]
    if importlib.util.find_spec("kubernetes") is None:
        raise ImportError("kubernetes")
    try:
        for name in ours:
            sys.modules[name] = _bare(name)
        from kubernetes.client.configuration import Configuration

        if "kubernetes.client" in ours:
            vars(sys.modules["kubernetes.client"]).update(ApiClient=_api_client, Configuration=Configuration)
        from kubernetes.client.rest import RESTClientObject
        from kubernetes.config import kube_config
        from kubernetes.config.incluster_config import load_incluster_config
    finally:
        for name in ours:
            sys.modules.pop(name, None)
    return Library(kube_config, load_incluster_config, Configuration, RESTClientObject)


def _bare(name: str) -> ModuleType:
    """A module that stands for one of the library's packages, or for one of which it needs little or only at times."""
    if name == _PROCESSES:
        module = ModuleType(name)
        rest = {"__getattr__": lambda attribute: getattr(importlib.import_module(name), attribute)}
        vars(module).update(rest, cpu_count=os.cpu_count)
        return module
    if name in _LATER:
        module = ModuleType(name)
        vars(module)["__getattr__"] = lambda attribute: _when_used(name, attribute)
        return module
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ImportError(name)
    return importlib.util.module_from_spec(spec)


def _when_used(name: str, attribute: str) -> Any:
    """A submodule, imported now; the class that is imported by name is, when it is called."""
    if attribute.startswith("__"):
        raise AttributeError(attribute)
    return _session if attribute == "OAuth2Session" else importlib.import_module(f"{name}.{attribute}")


def _session(*args: Any, **more: Any) -> Any:
    return importlib.import_module("requests_oauthlib").OAuth2Session(*args, **more)


def _api_client(*args: Any, **more: Any) -> Any:
    """The library's client, which it needs only to renew an OIDC login."""
    from kubernetes.client.api_client import ApiClient

    return ApiClient(*args, **more)


def place(url: str) -> tuple[str, int]:
    """The host and the port of an API server."""
    parts = urlsplit(url)
    return parts.hostname or "localhost", parts.port or (80 if parts.scheme == "http" else 443)


def use_proxy(configuration: Any) -> None:
    """Have the library use a proxy as kubectl does.

    A SOCKS proxy looks up the names of hosts itself. Of others the library does not send the password.
    """
    parts = urlsplit(configuration.proxy or "")
    if parts.scheme == "socks5":
        configuration.proxy = parts._replace(scheme="socks5h").geturl()
    elif "@" in parts.netloc and not parts.scheme.startswith("socks"):
        named, _, host = parts.netloc.rpartition("@")
        name, _, password = named.partition(":")
        word = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode("ascii")
        configuration.proxy_headers = {"proxy-authorization": f"Basic {word}"}
        configuration.proxy = parts._replace(netloc=host).geturl()


def keep_small(pools: Any, dial: Callable[[float], socket.socket] | None = None) -> None:
    """Keep what each connection of these pools holds small, as one is open for each followed log.

    `dial`: how they connect, if not to the server's own address.
    """
    from http.client import HTTPResponse

    from urllib3 import Retry

    class Response(HTTPResponse):
        def __init__(self, sock: Any, *args: Any, **more: Any) -> None:
            super().__init__(sock, *args, **more)
            self.fp.close()
            self.fp = sock.makefile("rb", _BUFFER_BYTES)

    more = {"_new_conn": lambda each: dial(each.timeout)} if dial else {}
    pools.pool_classes_by_scheme = {
        scheme: type(
            "Pool",
            (pool,),
            {"ConnectionCls": type("Connection", (pool.ConnectionCls,), {"response_class": Response, **more})},
        )
        for scheme, pool in pools.pool_classes_by_scheme.items()  # those of a SOCKS proxy differ
    }
    pools.connection_pool_kw["retries"] = Retry(False)  # one for all requests: we repeat those that may be repeated
    _share_context(pools.connection_pool_kw)
    if not listener.listens():  # this process is a command: what follows holds for all that a process allocates
        _return_buffers()


def dial(pools: Any, url: str, timeout_s: float) -> socket.socket:
    """A connection of its own to that server, as these pools make theirs: by their proxy, with their certificates."""
    connections = pools.connection_from_url(url)
    made = connections._new_conn()
    made.timeout = timeout_s
    if connections.proxy is None:
        made.connect()
    elif url.startswith("https:"):
        connections._prepare_proxy(made)
    else:
        made.set_tunnel(*place(url), headers=connections.proxy_headers)
        made.connect()
    watch_host(made.sock, _DEAD_S)
    found: socket.socket = made.sock
    return found


def _share_context(settings: dict[str, Any]) -> None:
    """Give all connections of a pool one TLS context: urllib3 makes one for each, with all certificates, of 30 kB."""
    from urllib3.util.ssl_ import create_urllib3_context

    context = create_urllib3_context(cert_reqs=settings["cert_reqs"])
    # It is the default since Python 3.13, and refuses the authorities of EKS, among others.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    ours = {name: settings[name] for name in ("ca_certs", "ca_cert_data", "cert_file", "key_file") if name in settings}
    try:
        if ours.get("ca_certs") or ours.get("ca_cert_data"):
            context.load_verify_locations(ours.get("ca_certs"), cadata=ours.get("ca_cert_data"))
        else:
            context.load_default_certs()
        if ours.get("cert_file"):
            context.load_cert_chain(ours["cert_file"], ours.get("key_file"))
    except OSError:
        return  # connections report it
    for name in ours:
        del settings[name]
    settings["ssl_context"] = context


def _return_buffers() -> None:
    """Have the C library return OpenSSL's buffers to the system: their gaps would stay between connections.

    OpenSSL allocates one of 17 kB for each read and frees it after; from this size on, each is a mapping of its own.
    """
    with contextlib.suppress(AttributeError):  # not the GNU C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def is_ahead(response: Any) -> bool:
    """Whether a read of an open response returns at once, though its socket may show nothing to read."""
    reader = response._fp.fp
    if reader is None:
        return True
    sock = reader.raw._sock
    is_tls = isinstance(sock, ssl.SSLSocket)
    limit = sock.gettimeout()
    sock.settimeout(0.0)
    try:
        received = reader.peek(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True  # the next read raises it
    finally:
        sock.settimeout(limit)
    if received in (b"\r", b"\r\n"):  # the end of a chunk that was read: a read waits for the next one
        return is_tls and sock.pending() > 0
    return bool(received) or is_tls  # without TLS, the socket shows the end
