"""Whom to tell of a run: webhooks by their URL, and any service that apprise knows."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from launcher.agent import webhook
from launcher.agent.named_tuple import NamedTuple
from launcher.errors import SpecError
from launcher.system import install

if TYPE_CHECKING:
    from collections.abc import Iterable

ENV = "env:"
"""In place of a URL: the variable that holds it."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://\S+\Z", re.IGNORECASE)
_HINT = "write https://HOST/PATH, a URL of apprise such as slack://..., or env:NAME for the variable that holds it"


class Receivers(NamedTuple):
    """The receivers of a run's notices, as its file `notify` has them."""

    webhooks: tuple[str, ...]
    others: tuple[str, ...]
    """URLs that only apprise understands, in a launcher."""

    secret: str
    followed: bool
    """Whether a launcher follows the run from its start."""

    def to_text(self) -> str:
        """The content of that file."""
        return json.dumps(
            {
                "urls": self.webhooks,
                "apprise": self.others,
                "secret": self.secret,
                "followed": self.followed,
            }
        )

    @classmethod
    def from_text(cls, text: str) -> Receivers:
        """The receivers in that file. Raises `ValueError`."""
        found = json.loads(text)
        return cls(tuple(found["urls"]), tuple(found["apprise"]), found["secret"], bool(found["followed"]))


def check(texts: Iterable[str]) -> None:
    """Raise `SpecError` unless each is a URL, or names a variable. Messages show no part that may be a token."""
    for text in texts:
        if text.startswith(ENV):
            if not _NAME.match(text[len(ENV) :]):
                raise SpecError(f"notify {text!r} names no variable", hint="write env:NAME")
        else:
            _check_url(text)


def _check_url(url: str, place: str = "") -> None:
    what = f"notify {place or repr(_shown(url))}"
    if not _SCHEME.match(url) or not url.isascii():
        raise SpecError(f"{what} is not a URL", hint=_HINT)
    if not url.lower().startswith(("http://", "https://")):
        _check_apprise(url, what)
        return
    try:
        parts = urlsplit(url)
        whole = bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if not whole:
        raise SpecError(f"{what} is not a URL: it names no host, or no port that exists", hint=_HINT)


def _check_apprise(url: str, what: str) -> None:
    if importlib.util.find_spec("apprise") is None:
        raise SpecError(
            f"{what} needs the package apprise, which is not installed here",
            hint=f"{install.command('notify')}; or name a webhook: https://...",
        )
    import apprise

    if not apprise.Apprise().add(url):
        raise SpecError(f"{what} is not a URL that apprise understands", hint="https://appriseit.com/services/")


def _shown(text: str) -> str:
    return webhook.shown(text) if "://" in text else text[:8] + "..." * (len(text) > 8)


def shown(text: str) -> str:
    """The setting without what may be a token."""
    return text if text.startswith(ENV) else _shown(text)


def receivers(texts: Iterable[str], secret_name: str, *, followed: bool) -> Receivers | None:
    """Whom to tell, with the values of the named variables; None: no one. Raises `SpecError`."""
    urls = list(dict.fromkeys(_value(text) for text in texts))
    if not urls:
        return None
    if secret_name and secret_name not in os.environ:
        hint = f"export {secret_name} first"
        raise SpecError(f"notify-secret {secret_name}: not set in the current environment", hint=hint)
    webhooks = tuple(url for url in urls if url.lower().startswith(("http://", "https://")))
    others = tuple(url for url in urls if url not in webhooks)
    return Receivers(webhooks, others, os.environ.get(secret_name, "") if secret_name else "", followed)


def _value(text: str) -> str:
    """The URL, from its variable if the text names one."""
    if not text.startswith(ENV):
        return text
    name = text[len(ENV) :]
    if name not in os.environ:
        raise SpecError(f"notify {text}: {name} is not set in the current environment", hint=f"export {name} first")
    _check_url(os.environ[name], f"{text}: its value")
    return os.environ[name]
