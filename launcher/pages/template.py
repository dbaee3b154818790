"""Pages from their templates: one style, scripts of their own, and nothing that a run could add to them."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
import time
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from launcher.agent.named_tuple import NamedTuple
from launcher.console import summary

if TYPE_CHECKING:
    from collections.abc import Sequence

_DIRECTORY = os.path.dirname(__file__)
_PART = re.compile(r'<(header|nav|section)\b(?: id="([\w-]+)")?.*?</\1>', re.DOTALL)

_POLICY = re.compile(r'http-equiv="Content-Security-Policy" content="([^"]*)"')


class Live(NamedTuple):
    """How `distlaunch serve` shows a page."""

    version: str
    """What the page shows: its events begin after that."""

    events: str
    """The path of its server-sent events; empty if nothing will change."""


def rendered(name: str, live: Live | None, scripts: Sequence[str], **values: Any) -> str:
    """The whole page. `scripts`: files of this package, of which a page that is served has one more."""
    style, script = _own("report.css"), "\n".join(map(_own, (*scripts, "live.js") if live else scripts))
    return (
        _environment()
        .get_template(name)
        .render(
            **values,
            live=live,
            style=Markup(style),  # noqa: S704 - our own file
            script=Markup(script),  # noqa: S704
            policy=_policy(style, script, fetches=live is not None),
        )
    )


def parts(page: str) -> dict[str, str]:
    """The header, the navigation and the sections of a page, by their names. They are not nested."""
    return {match[2] or match[1]: match[0] for match in _PART.finditer(page)}


def policy_in(page: str) -> str:
    """The content security policy that a page names, which stands before everything that comes from a run."""
    found = _POLICY.search(page)
    return html.unescape(found[1]) if found else "default-src 'none'"


def _policy(style: str, script: str, *, fetches: bool) -> str:
    """Only this style and this script apply, whatever a run has written; nothing is fetched or sent elsewhere."""
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (style, script)]
    own = "connect-src 'self'; " if fetches else ""
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; img-src data:; "
        f"{own}base-uri 'none'; form-action 'none'"
    )


def _own(name: str) -> str:
    with open(os.path.join(_DIRECTORY, name), encoding="utf-8") as file:
        return file.read()


def _environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_DIRECTORY), autoescape=True, undefined=jinja2.StrictUndefined
    )
    found.filters |= {
        "duration": summary.duration,
        "sentence": lambda text: text[:1].upper() + text[1:] + ".",
        "clock": lambda when: time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when)),
        "when": lambda when: time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(when)),
        "ranks": lambda ranks: summary.ranks_text(tuple(ranks)),
        "value": _value,
    }
    return found


def _value(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return (
        {True: "true", False: "false", None: ""}.get(value, str(value))
        if isinstance(value, (bool, type(None)))
        else str(value)
    )
