"""Webhooks: JSON by POST, signed as https://www.standardwebhooks.com specifies it, to receivers of any quality."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple
from urllib.parse import unquote, urlsplit, urlunsplit

from .named_tuple import NamedTuple

_WAIT_S = 5.0
"""How long a receiver may take for each step of one attempt."""

_PAUSES_S = (1.0, 4.0)
_AGAIN = (408, 429)
_ANSWER_BYTES = 4096
_PREFIX = "whsec_"


class Post(NamedTuple):
    """What is sent, the same on each attempt except for the time."""

    id: str
    body: Dict[str, Any]
    secret: str = ""
    """Empty: it is not signed."""

    def headers(self, data: bytes, now: int) -> Dict[str, str]:
        """The headers, with the signature over id, time and body."""
        found = {"Content-Type": "application/json", "User-Agent": "distlaunch", "webhook-id": self.id}
        found["webhook-timestamp"] = str(now)
        if self.secret:
            signed = b".".join((self.id.encode(), str(now).encode(), data))
            digest = hmac.new(_key(self.secret), signed, hashlib.sha256).digest()
            found["webhook-signature"] = "v1," + base64.b64encode(digest).decode("ascii")
        return found


def _key(secret: str) -> bytes:
    """The key: a secret of the specification is base64 after its prefix, any other is taken as it is."""
    if secret.startswith(_PREFIX):
        try:
            return base64.b64decode(secret[len(_PREFIX) :], validate=True)
        except ValueError:
            pass
    return secret.encode()


def send(urls: Sequence[str], post: Post, limit_s: float) -> List[str]:
    """Send it to all of them at once; returns why some may not have it. Never raises, and never takes longer."""
    data = json.dumps(post.body).encode("ascii")
    told: List[Optional[str]] = [f"no answer within {limit_s:.0f} s"] * len(urls)

    def work(index: int) -> None:
        told[index] = _deliver(urls[index], post, data, time.monotonic() + limit_s)

    threads = [threading.Thread(target=work, args=(each,), name="webhook", daemon=True) for each in range(len(urls))]
    for thread in threads:
        thread.start()
    limit = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, limit - time.monotonic()))
    return [f"{shown(url)}: {why}" for url, why in zip(urls, list(told)) if why]


def shown(url: str) -> str:
    """The URL without what may be a token: user, path and query."""
    scheme, separator, rest = url.partition("://")
    host = rest.split("/")[0].split("?")[0].split("#")[0].rpartition("@")[2]
    known = f"{scheme}{separator}"
    return f"{known}{host}/..." if scheme in ("http", "https") else f"{known}..."


def _deliver(url: str, post: Post, data: bytes, limit: float) -> Optional[str]:
    """Try until it is accepted or refused, or up to the limit; returns why it was not accepted."""
    why: Optional[str] = None
    for pause_s in (*_PAUSES_S, None):
        try:
            why, again = _attempt(url, post, data, limit - time.monotonic())
        except Exception as error:  # noqa: BLE001 - whatever a receiver does, the run goes on
            why, again = f"{getattr(error, 'reason', None) or error or type(error).__name__}", True
        if why is None or not again or pause_s is None or time.monotonic() + pause_s > limit:
            break
        time.sleep(pause_s)
    return why


def _attempt(url: str, post: Post, data: bytes, left_s: float) -> Tuple[Optional[str], bool]:
    """Why it was not accepted, or None, and whether another attempt may help."""
    # Imported here: 30 ms that only a run with webhooks pays.
    from urllib import error, request

    class Stays(request.HTTPRedirectHandler):
        """Follows no redirect: what is sent is for the receiver that was named."""

        def redirect_request(self, *_: Any, **__: Any) -> None:
            return None

    address, user = _without_user(url)
    headers = {**post.headers(data, int(time.time())), **user}
    asked = request.Request(address, data, headers, method="POST")  # noqa: S310 - checked: http or https
    try:
        with request.build_opener(Stays).open(asked, timeout=max(0.1, min(_WAIT_S, left_s))) as answer:
            answer.read(_ANSWER_BYTES)
    except error.HTTPError as refused:
        refused.close()
        if 300 <= refused.code < 400:
            return f"it redirects (HTTP {refused.code}), which is not followed", False
        return f"HTTP {refused.code}", refused.code >= 500 or refused.code in _AGAIN
    return None, False


def _without_user(url: str) -> Tuple[str, Dict[str, str]]:
    """The URL without user and password, and the header that holds them instead."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url, {}
    user, _, host = parts.netloc.rpartition("@")
    basic = base64.b64encode(unquote(user).encode()).decode("ascii")
    return urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {basic}"}
