"""Checks of single options of a job."""

from __future__ import annotations

from launcher.errors import SpecError
from launcher.system import names


def numa_binding(text: str) -> str | None:
    """The mode of `--numa-binding`; None: workers are not bound."""
    from launcher.agent.fabric.numa import MODES

    if text and text not in MODES:
        raise SpecError(f"numa-binding {text!r} is not known", hint=f"known: {', '.join(MODES)}")
    return text or None


def contract(text: str) -> str:
    """Check that there is a contract of that name, and return it."""
    from launcher.agent import contracts

    if text not in contracts.names():
        raise SpecError(f"contract {text!r} is not known", hint=names.hint(text, contracts.names()))
    return text


def patterns(texts: tuple[str, ...]) -> None:
    """Check the patterns of files to fetch."""
    from launcher.agent.outputs import tree

    for pattern in texts:
        try:
            tree.matcher(pattern)
        except tree.TreeError as error:
            raise SpecError(f"fetch: {error}") from None


def claim(text: str) -> None:
    """Check that the text is a place where runs can be claimed, or empty."""
    from launcher.agent.node import claim

    if text.startswith(claim.SCHEME):
        try:
            claim.split(text)
        except ValueError as error:
            raise SpecError(f"claim {error}", hint="write ssh://me@host/scratch/claims") from None
    elif text and not text.startswith("/"):
        raise SpecError(
            f"claim {text!r} is no absolute path", hint="write /scratch/claims, or ssh://HOST/scratch/claims"
        )


def fetch_node(text: str) -> None:
    """Check that the text is a node rank, or all."""
    if text != "all" and not (text.isascii() and text.isdecimal() and len(text) < 8):
        raise SpecError(f"fetch-node {text!r} is neither a node rank nor all", hint="write --fetch-node all")
